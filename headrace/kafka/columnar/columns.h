/* Consecutive records of one partition in Arrow columns, and their hand-over. */
#ifndef HEADRACE_COLUMNS_H
#define HEADRACE_COLUMNS_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"

/* --- buffers that grow ------------------------------------------------------------------------ */

typedef struct {
    char *start;
    size_t used, size;
} buffer_t;

/* Memory that is not there ends the process, as it does in librdkafka. */
static void *grown(buffer_t *buffer, size_t more) {
    size_t size = buffer->size ? buffer->size : 256;
    while (size < buffer->used + more)
        size *= 2;
    if (size != buffer->size) {
        buffer->start = realloc(buffer->start, size);
        if (buffer->start == NULL)
            abort();
        buffer->size = size;
    }
    void *place = buffer->start + buffer->used;
    buffer->used += more;
    return place;
}

static void put32(buffer_t *buffer, int32_t value) { memcpy(grown(buffer, 4), &value, 4); }
static void put64(buffer_t *buffer, int64_t value) { memcpy(grown(buffer, 8), &value, 8); }

/* Which of ``count`` values are there, as Arrow has it: one bit each. None are noted before the
 * first one that is not. */
typedef struct {
    buffer_t bits;
    int64_t nulls;
} validity_t;

static void note(validity_t *validity, int64_t before, int valid) {
    if (valid && validity->nulls == 0)
        return;
    size_t bytes = (size_t)(before / 8 + 1);
    if (validity->nulls == 0) {
        memset(grown(&validity->bits, bytes), 0xff, bytes);
    } else if (validity->bits.used < bytes) {
        *(char *)grown(&validity->bits, 1) = 0;
    }
    char bit = (char)(1 << (before % 8));
    if (valid) {
        validity->bits.start[before / 8] |= bit;
    } else {
        validity->bits.start[before / 8] &= (char)~bit;
        validity->nulls++;
    }
}

/* --- columns ---------------------------------------------------------------------------------- */

typedef struct {
    validity_t validity;
    buffer_t ends, data;
    int64_t count;
} bytes_t;

static void put_bytes(bytes_t *column, const void *data, size_t size) {
    if (column->count == 0)
        put32(&column->ends, 0);
    note(&column->validity, column->count, data != NULL);
    if (data != NULL && size > 0)
        memcpy(grown(&column->data, size), data, size);
    put32(&column->ends, (int32_t)column->data.used);
    column->count++;
}

/* How long the UTF-8 sequence at ``text`` is, 0 where there is none. */
static size_t sequence(const unsigned char *text) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t length = *text < 0x80         ? 1
                    : *text >> 5 == 0x06 ? 2
                    : *text >> 4 == 0x0e ? 3
                    : *text >> 3 == 0x1e ? 4
                                         : 0;
    if (length < 2)
        return length;
    uint32_t code = *text & (0xffu >> (length + 1));
    for (size_t at = 1; at < length; at++) {
        if (text[at] >> 6 != 2)
            return 0;
        code = code << 6 | (text[at] & 0x3f);
    }
    return code < least[length] || code > 0x10ffff || code >> 11 == 0x1b ? 0 : length;
}

/* Append text; a byte that is no UTF-8 becomes a question mark, because Arrow takes none. */
static void put_text(bytes_t *column, const char *text) {
    size_t size = strlen(text);
    put_bytes(column, text, size);
    unsigned char *copy = (unsigned char *)column->data.start + column->data.used - size;
    for (size_t at = 0; at < size;) {
        size_t length = sequence((const unsigned char *)text + at);
        if (length == 0)
            copy[at] = '?';
        at += length ? length : 1;
    }
}

/* What came of one partition: consecutive records, in columns. */
typedef struct {
    char topic[256];
    int32_t partition;
    int32_t leader_epoch; /* of the last record, negative where it is not known */
    int64_t count, first_offset, last_offset, bytes;
} part_head_t;

typedef struct {
    part_head_t head;
    bytes_t key, value, header_name, header_value;
    buffer_t offset, timestamp, timestamp_type, header_ends;
    validity_t headers;
} part_t;

static void put_headers(part_t *part, const message_t *message) {
    rd_kafka_headers_t *headers = NULL;
    const char *name;
    const void *value;
    size_t size;
    int missing = kafka.message_headers(message, &headers);
    if (part->head.count == 0)
        put32(&part->header_ends, 0);
    note(&part->headers, part->head.count, !missing);
    for (size_t at = 0; !missing && !kafka.header_get_all(headers, at, &name, &value, &size); at++) {
        put_text(&part->header_name, name);
        put_bytes(&part->header_value, value, size);
    }
    put32(&part->header_ends, (int32_t)part->header_name.count);
}

/* What a column takes of memory, its part of what is around it not counted. */
static int64_t weight(const bytes_t *column) {
    return (int64_t)(column->data.used + column->ends.used + column->validity.bits.used);
}

static int64_t weight_of(const part_t *part) {
    return weight(&part->key) + weight(&part->value) + weight(&part->header_name) +
           weight(&part->header_value) + (int64_t)part->headers.bits.used +
           (int64_t)(part->offset.used + part->timestamp.used + part->timestamp_type.used +
                     part->header_ends.used);
}

/* Bytes in the columns, without those that say where each value is. */
static size_t content(const part_t *part) {
    return part->key.data.used + part->value.data.used + part->header_name.data.used +
           part->header_value.data.used;
}

/* Append a record; return the bytes of its key, value and headers. */
static int64_t put_record(part_t *part, const message_t *message) {
    int type = 0;
    size_t before = content(part);
    int64_t timestamp = kafka.message_timestamp(message, &type);
    put_headers(part, message);
    put_bytes(&part->key, message->key, message->key_size);
    put_bytes(&part->value, message->value, message->value_size);
    put64(&part->offset, message->offset);
    put64(&part->timestamp, timestamp);
    *(char *)grown(&part->timestamp_type, 1) = (char)type;
    if (part->head.count++ == 0)
        part->head.first_offset = message->offset;
    part->head.last_offset = message->offset;
    return (int64_t)(content(part) - before);
}

/* --- Arrow's C data interface ----------------------------------------------------------------- */

struct ArrowArray {
    int64_t length, null_count, offset, n_buffers, n_children;
    const void **buffers;
    struct ArrowArray **children;
    struct ArrowArray *dictionary;
    void (*release)(struct ArrowArray *);
    void *private_data;
};

#define MOST_BUFFERS 3

typedef struct {
    const void *buffers[MOST_BUFFERS];
    struct ArrowArray **pointers;
    struct ArrowArray children[];
} owned_t;

static void release(struct ArrowArray *array) {
    owned_t *owned = array->private_data;
    for (int at = 0; at < MOST_BUFFERS; at++)
        free((void *)owned->buffers[at]);
    for (int at = 0; at < array->n_children; at++)
        if (owned->children[at].release != NULL)
            owned->children[at].release(&owned->children[at]);
    free(owned);
    array->release = NULL;
}

/* Make an array whose children, and what points at them, lie after it in one piece of memory. */
static owned_t *make(struct ArrowArray *array, int64_t length, int buffers, int children) {
    size_t each = sizeof(struct ArrowArray) + sizeof(struct ArrowArray *);
    owned_t *owned = calloc(1, sizeof(owned_t) + (size_t)children * each);
    if (owned == NULL)
        abort();
    owned->pointers = (struct ArrowArray **)(void *)&owned->children[children];
    for (int at = 0; at < children; at++)
        owned->pointers[at] = &owned->children[at];
    *array = (struct ArrowArray){.length = length,
                                 .n_buffers = buffers,
                                 .n_children = children,
                                 .buffers = owned->buffers,
                                 .children = owned->pointers,
                                 .release = release,
                                 .private_data = owned};
    return owned;
}

/* Hand the memory of a buffer over, as much as is used and never none: Arrow wants an address. */
static const void *given(buffer_t *buffer) {
    char *start = realloc(buffer->start, buffer->used ? buffer->used : 1);
    if (start == NULL)
        abort();
    memset(buffer, 0, sizeof *buffer);
    return start;
}

static void give_validity(struct ArrowArray *array, owned_t *owned, validity_t *validity) {
    array->null_count = validity->nulls;
    if (validity->nulls > 0)
        owned->buffers[0] = given(&validity->bits);
}

static void give_numbers(struct ArrowArray *array, buffer_t *numbers, int64_t length) {
    make(array, length, 2, 0)->buffers[1] = given(numbers);
}

static void give_bytes(struct ArrowArray *array, bytes_t *column) {
    owned_t *owned = make(array, column->count, 3, 0);
    if (column->count == 0)
        put32(&column->ends, 0);
    give_validity(array, owned, &column->validity);
    owned->buffers[1] = given(&column->ends);
    owned->buffers[2] = given(&column->data);
}

static void give_headers(struct ArrowArray *array, part_t *part) {
    owned_t *list = make(array, part->head.count, 2, 1);
    give_validity(array, list, &part->headers);
    list->buffers[1] = given(&part->header_ends);
    owned_t *pairs = make(&list->children[0], part->header_name.count, 1, 2);
    give_bytes(&pairs->children[0], &part->header_name);
    give_bytes(&pairs->children[1], &part->header_value);
}

static void drop_bytes(bytes_t *column) {
    free(column->validity.bits.start);
    free(column->ends.start);
    free(column->data.start);
}

static void drop_part(part_t *part) {
    drop_bytes(&part->key);
    drop_bytes(&part->value);
    drop_bytes(&part->header_name);
    drop_bytes(&part->header_value);
    free(part->offset.start);
    free(part->timestamp.start);
    free(part->timestamp_type.start);
    free(part->header_ends.start);
    free(part->headers.bits.start);
}

#endif
