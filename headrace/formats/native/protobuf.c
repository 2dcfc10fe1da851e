/* Protobuf to columns: each value is one message, whose fields that a plan names become a row.
 *
 * A value is read once. Only plain ones are: each field that is not repeated at most once, one
 * member of a oneof, no key of a map twice, no group. What is not plain, and what seems damaged,
 * undoes its row; the caller has Google's own reader decide, and write it again plainly.
 */
#include "columns.h"

#define LEAST_TIME (-62135596800LL)
#define END_OF_TIME 253402300800LL
#define NANOS 1000000000LL

/* How the bytes of a field are read. As in protobuf/plan.py. */
enum {
    VARINT32,  /* into 32 bits */
    UNSIGNED32, /* a varint of 32 bits into 64 */
    VARINT64,
    UNSIGNED64, /* a varint into a decimal of 128 bits */
    ZIGZAG32,
    ZIGZAG64,
    BOOL,
    ENUM,
    FIXED32,
    FIXED32_UNSIGNED, /* into 64 bits */
    FIXED64,
    FIXED64_UNSIGNED, /* into a decimal of 128 bits */
    STRING,
    BYTES,
    MESSAGE,
    WRAPPER, /* a message with one field, into the column of that field */
    TIME,
};

/* What of a field is not its kind. */
enum { REPEATED = 1, IMPLICIT = 2, CLOSED = 4 };

/* Why a value is no row. As in protobuf/decoder.py. */
enum { FITS, ENDS_EARLY, NOT_PLAIN, NOT_UTF8, NO_TIME, TOO_LARGE };

enum { AS_VARINT = 0, AS_FIXED64 = 1, AS_BYTES = 2, AS_FIXED32 = 5 };

typedef struct {
    int32_t number, kind, flags;
    int32_t column;      /* by its number among all columns */
    int32_t message;     /* of a message: which one it is; of an enum: what it is by default */
    int32_t oneof;       /* the bit of its oneof, or -1 */
    int32_t names, count; /* of an enum: its first name, and how many they are */
} plan_field_t;

typedef struct {
    int32_t first, count, is_map;
} plan_message_t;

/* Names of enums, by number within one. */
typedef struct {
    int32_t number, start, size;
} plan_name_t;

#define WORDS 8 /* of 64 bits for the fields and the oneofs of a message */

typedef struct {
    const plan_field_t *fields;
    const plan_message_t *messages;
    const plan_name_t *names;
    const char *text;
    column_t **columns;
    const uint8_t *at; /* where something is wrong */
    int64_t left;      /* bytes that columns may still take */
    int64_t *costs;    /* by column: bytes of an item of the list that it is */
    int32_t field;     /* the one that is read, or -1 */
    int32_t status;
} pb_t;

static int wrong(pb_t *r, int status, const uint8_t *at) {
    r->status = status;
    r->at = at;
    return 0;
}

static int varint(pb_t *r, const uint8_t **at, const uint8_t *end, uint64_t *value) {
    const uint8_t *p = *at;
    uint64_t found = 0;
    for (int shift = 0; shift < 70; shift += 7) {
        if (p == end)
            return wrong(r, ENDS_EARLY, p);
        uint8_t byte = *p++;
        found |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            *at = p;
            *value = found;
            return 1;
        }
    }
    return wrong(r, NOT_PLAIN, p);
}

/* Find where the bytes of a value of this length end. */
static int span(pb_t *r, const uint8_t **at, const uint8_t *end, const uint8_t **found) {
    uint64_t size;
    const uint8_t *start = *at;
    if (!varint(r, at, end, &size))
        return 0;
    if (size > (uint64_t)(end - *at))
        return wrong(r, ENDS_EARLY, start);
    *found = *at + size;
    return 1;
}

static int tag(pb_t *r, const uint8_t **at, const uint8_t *end, uint32_t *number, int *wire) {
    const uint8_t *start = *at;
    uint64_t found;
    if (!varint(r, at, end, &found))
        return 0;
    if (*at - start > 5 || found > UINT32_MAX || found < 8)
        return wrong(r, NOT_PLAIN, start);
    *number = (uint32_t)(found >> 3);
    *wire = (int)(found & 7);
    return 1;
}

static int skip(pb_t *r, const uint8_t **at, const uint8_t *end, int wire) {
    uint64_t ignored;
    const uint8_t *after;
    switch (wire) {
    case AS_VARINT: return varint(r, at, end, &ignored);
    case AS_FIXED64:
    case AS_FIXED32:
        if (end - *at < (wire == AS_FIXED64 ? 8 : 4))
            return wrong(r, ENDS_EARLY, *at);
        *at += wire == AS_FIXED64 ? 8 : 4;
        return 1;
    case AS_BYTES:
        if (!span(r, at, end, &after))
            return 0;
        *at = after;
        return 1;
    default: return wrong(r, NOT_PLAIN, *at);
    }
}

/* --- values of fields ------------------------------------------------------------------------- */

static int wire_of(int kind) {
    switch (kind) {
    case FIXED32:
    case FIXED32_UNSIGNED: return AS_FIXED32;
    case FIXED64:
    case FIXED64_UNSIGNED: return AS_FIXED64;
    case STRING:
    case BYTES:
    case MESSAGE:
    case WRAPPER:
    case TIME: return AS_BYTES;
    default: return AS_VARINT;
    }
}

static void put_number(column_t *column, const void *number, size_t size) {
    memcpy(place_of(column), number, size);
    fill(column);
}

static void put_32(column_t *column, uint32_t number) { put_number(column, &number, 4); }

static void put_64(column_t *column, uint64_t number) { put_number(column, &number, 8); }

static void put_128(column_t *column, uint64_t number) {
    uint64_t both[2] = {number, 0};
    put_number(column, both, 16);
}

/* Write the name of a number of an enum, or the number as text where it has none. */
static int put_enum(pb_t *r, const plan_field_t *field, column_t *column, int32_t number) {
    int32_t low = field->names, high = field->names + field->count;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (r->names[middle].number < number)
            low = middle + 1;
        else
            high = middle;
    }
    if (low < field->names + field->count && r->names[low].number == number) {
        r->left -= r->names[low].size;
        put_text(column, r->text + r->names[low].start, (size_t)r->names[low].size);
        return 1;
    }
    if (field->flags & CLOSED)
        return wrong(r, NOT_PLAIN, r->at);
    char digits[12];
    int size = 0;
    uint32_t rest = number < 0 ? 0u - (uint32_t)number : (uint32_t)number;
    do
        digits[11 - size++] = (char)('0' + rest % 10);
    while ((rest /= 10) > 0);
    if (number < 0)
        digits[11 - size++] = '-';
    put_text(column, digits + 12 - size, (size_t)size);
    return 1;
}

/* Read a number, of a varint or of fixed size, into the open row. */
static int read_number(pb_t *r, const plan_field_t *field, const uint8_t **at, const uint8_t *end,
                       column_t *column) {
    uint64_t value = 0;
    uint32_t half;
    int wire = wire_of(field->kind);
    r->at = *at;
    if (wire == AS_VARINT) {
        if (!varint(r, at, end, &value))
            return 0;
    } else if (wire == AS_FIXED64) {
        if (end - *at < 8)
            return wrong(r, ENDS_EARLY, *at);
        memcpy(&value, *at, 8);
        *at += 8;
    } else {
        if (end - *at < 4)
            return wrong(r, ENDS_EARLY, *at);
        memcpy(&half, *at, 4);
        value = half;
        *at += 4;
    }
    half = (uint32_t)value;
    switch (field->kind) {
    case VARINT32:
    case FIXED32: put_32(column, half); break;
    case UNSIGNED32:
    case FIXED32_UNSIGNED: put_64(column, half); break;
    case VARINT64:
    case FIXED64: put_64(column, value); break;
    case UNSIGNED64:
    case FIXED64_UNSIGNED: put_128(column, value); break;
    case ZIGZAG32: put_32(column, half >> 1 ^ (0u - (half & 1))); break;
    case ZIGZAG64: put_64(column, value >> 1 ^ (0u - (value & 1))); break;
    case BOOL: put_bit(column, value != 0); break;
    default: return put_enum(r, field, column, (int32_t)half);
    }
    return 1;
}

static int read_time(pb_t *r, const uint8_t *at, const uint8_t *end, column_t *column) {
    uint64_t parts[2] = {0, 0};
    int seen = 0;
    const uint8_t *start = at;
    while (at < end) {
        uint32_t number;
        int wire;
        const uint8_t *before = at;
        if (!tag(r, &at, end, &number, &wire))
            return 0;
        if (number > 2 || wire != AS_VARINT) {
            if (!skip(r, &at, end, wire))
                return 0;
            continue;
        }
        if (seen & 1 << number)
            return wrong(r, NOT_PLAIN, before);
        seen |= 1 << number;
        if (!varint(r, &at, end, &parts[number - 1]))
            return 0;
    }
    int64_t seconds = (int64_t)parts[0], nanos = (int32_t)(uint32_t)parts[1];
    if (seconds < LEAST_TIME || seconds >= END_OF_TIME || nanos < 0 || nanos >= NANOS)
        return wrong(r, NO_TIME, start);
    put_64(column, (uint64_t)(seconds * 1000000 + nanos / 1000));
    return 1;
}

static int read_fields(pb_t *r, int32_t message, const uint8_t *at, const uint8_t *end);

/* Read what is between two places into the open row. */
static int read_bytes(pb_t *r, const plan_field_t *field, const uint8_t *at, const uint8_t *end,
                      column_t *column) {
    switch (field->kind) {
    case STRING:
        if (!is_utf8(at, (size_t)(end - at)))
            return wrong(r, NOT_UTF8, at);
        /* fall through */
    case BYTES: put_text(column, at, (size_t)(end - at)); return 1;
    case TIME: return read_time(r, at, end, column);
    case WRAPPER: return read_fields(r, field->message, at, end);
    default:
        if (!read_fields(r, field->message, at, end))
            return 0;
        fill(column);
        return 1;
    }
}

/* Open an item of a list. */
static int open_item(pb_t *r, const plan_field_t *field, column_t *list) {
    r->left -= r->costs[field->column];
    if (r->left < 0)
        return wrong(r, TOO_LARGE, r->at);
    level_open(list->items);
    return 1;
}

static int read_items(pb_t *r, const plan_field_t *field, const uint8_t **at, const uint8_t *end,
                      int wire, column_t *list) {
    int expected = wire_of(field->kind);
    column_t *item = list->children;
    const uint8_t *after;
    if (wire == AS_BYTES) {
        if (!span(r, at, end, &after))
            return 0;
        if (expected == AS_BYTES) {
            if (!open_item(r, field, list) || !read_bytes(r, field, *at, after, item))
                return 0;
            level_close(list->items);
        } else {
            while (*at < after) {
                if (!open_item(r, field, list) || !read_number(r, field, at, after, item))
                    return 0;
                level_close(list->items);
            }
        }
        *at = after;
        return 1;
    }
    if (!open_item(r, field, list) || !read_number(r, field, at, end, item))
        return 0;
    level_close(list->items);
    return 1;
}

/* --- maps ------------------------------------------------------------------------------------- */

static const char *bytes_of(const column_t *column, int64_t row, size_t *size) {
    static const char bits[] = {0, 1};
    if (column->layout == VARIABLE) {
        *size = (size_t)(column->ends[row + 1] - column->ends[row]);
        return column->data + column->ends[row];
    }
    if (column->layout == BITS) {
        *size = 1;
        return bits + (column->data[row / 8] >> (row % 8) & 1);
    }
    *size = (size_t)column->width;
    return column->data + row * column->width;
}

/* Whether no key is twice among the entries of the open row of a map. */
static int has_keys_once(const column_t *map) {
    const column_t *key = map->children[0].children;
    int64_t first = map->ends[map->level->count], count = map->items->count - first;
    if (count < 2)
        return 1;
    size_t room = 4;
    while (room < 2 * (size_t)count)
        room *= 2;
    int64_t few[64], *table = few;
    if (room > 64)
        table = malloc(room * sizeof *table);
    if (table == NULL)
        abort();
    memset(table, 0xff, room * sizeof *table);
    int once = 1;
    for (int64_t row = first; once && row < first + count; row++) {
        size_t size, other;
        const char *bytes = bytes_of(key, row, &size);
        uint64_t hash = 14695981039346656037u;
        for (size_t at = 0; at < size; at++)
            hash = (hash ^ (uint8_t)bytes[at]) * 1099511628211u;
        size_t place = (hash ^ hash >> 29) & (room - 1);
        for (; table[place] >= 0; place = (place + 1) & (room - 1)) {
            const char *found = bytes_of(key, table[place], &other);
            if (other == size && memcmp(found, bytes, size) == 0) {
                once = 0;
                break;
            }
        }
        table[place] = row;
    }
    if (table != few)
        free(table);
    return once;
}

/* --- messages --------------------------------------------------------------------------------- */

/* Give the open row what a field has that a message does not have. */
static int complete(pb_t *r, const plan_field_t *field, column_t *column, const uint8_t *at) {
    if (field->flags & REPEATED) {
        fill(column);
        return 1;
    }
    if (!(field->flags & IMPLICIT))
        return 1;
    if (field->kind == ENUM)
        return put_enum(r, field, column, field->message);
    if (field->kind == MESSAGE || field->kind == WRAPPER || field->kind == TIME)
        return read_bytes(r, field, at, at, column);
    fill(column);
    return 1;
}

static const plan_field_t *find(const pb_t *r, const plan_message_t *message, int32_t guess,
                                uint32_t number) {
    const plan_field_t *fields = r->fields + message->first;
    if (guess < message->count && (uint32_t)fields[guess].number == number)
        return fields + guess;
    int32_t low = 0, high = message->count;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if ((uint32_t)fields[middle].number < number)
            low = middle + 1;
        else
            high = middle;
    }
    int is_found = low < message->count && (uint32_t)fields[low].number == number;
    return is_found ? fields + low : NULL;
}

static int saw(uint64_t *seen, int32_t bit) {
    uint64_t mask = 1ULL << (bit % 64);
    int before = (seen[bit / 64] & mask) != 0;
    seen[bit / 64] |= mask;
    return before;
}

static int read_fields(pb_t *r, int32_t index, const uint8_t *at, const uint8_t *end) {
    const plan_message_t *message = r->messages + index;
    const plan_field_t *fields = r->fields + message->first;
    uint64_t seen[WORDS] = {0};
    int32_t last = -1;
    while (at < end) {
        const uint8_t *start = at, *after;
        uint32_t number;
        int wire;
        r->field = -1;
        if (!tag(r, &at, end, &number, &wire))
            return 0;
        const plan_field_t *field = find(r, message, last < 0 ? 0 : last, number);
        int expected = field == NULL ? -1 : wire_of(field->kind);
        int is_list = field != NULL && field->flags & REPEATED;
        if (field == NULL || (wire != expected && !(is_list && wire == AS_BYTES))) {
            /* Google's reader passes by entries of maps with what it does not know */
            if (message->is_map)
                return wrong(r, NOT_PLAIN, start);
            if (!skip(r, &at, end, wire))
                return 0;
            continue;
        }
        last = (int32_t)(field - fields) + !is_list;
        r->field = (int32_t)(field - r->fields);
        column_t *column = r->columns[field->column];
        if (is_list) {
            if (!read_items(r, field, &at, end, wire, column))
                return 0;
            continue;
        }
        if (saw(seen, (int32_t)(field - fields)) || (field->oneof >= 0 && saw(seen, field->oneof)))
            return wrong(r, NOT_PLAIN, start);
        if (wire != AS_BYTES) {
            if (!read_number(r, field, &at, end, column))
                return 0;
            continue;
        }
        if (!span(r, &at, end, &after) || !read_bytes(r, field, at, after, column))
            return 0;
        at = after;
    }
    for (int32_t k = 0; k < message->count; k++) {
        const plan_field_t *field = fields + k;
        if (seen[k / 64] >> (k % 64) & 1)
            continue;
        column_t *column = r->columns[field->column];
        r->field = (int32_t)(field - r->fields);
        if (!complete(r, field, column, end))
            return 0;
        int is_map = field->kind == MESSAGE && r->messages[field->message].is_map;
        if (is_map && !has_keys_once(column))
            return wrong(r, NOT_PLAIN, end);
    }
    return 1;
}

/* --- all values ------------------------------------------------------------------------------- */

/* Note the columns by their numbers, and what items of lists cost. Returns what a row does. */
static int64_t open_columns(pb_t *r, column_t *column) {
    int64_t own = column->width + (column->layout == VARIABLE || column->layout == LIST ? 4 : 0) + 1;
    int64_t inner = 0;
    r->columns[column->number] = column;
    for (int32_t at = 0; at < column->child_count; at++)
        inner += open_columns(r, &column->children[at]);
    r->costs[column->number] = inner;
    return column->layout == LIST ? own : own + inner;
}

static void *zeros(size_t count, size_t size) {
    void *found = calloc(count, size);
    if (found == NULL)
        abort();
    return found;
}

/* Read values in Protobuf as rows of a struct. ``bad`` has room for four numbers for each value:
 * the place of one that is no row, why, at which byte, and in which field or -1. ``most`` bytes may
 * be taken by the items of lists and by names beside the values' own; a value with which they are
 * more is bad. Returns how many are bad, -1 where the struct has a type that is not known. */
int64_t headrace_read_protobuf(const struct ArrowSchema *schema, const struct ArrowArray *array,
                               int large, const plan_field_t *fields,
                               const plan_message_t *messages, const plan_name_t *names,
                               const char *text, int64_t most, struct ArrowArray *rows,
                               int64_t *bad) {
    values_t values = values_of(array, large);
    columns_t columns;
    if (columns_open(&columns, schema, values.count))
        return -1;
    pb_t r = {.fields = fields,
              .messages = messages,
              .names = names,
              .text = text,
              .left = most,
              .columns = zeros((size_t)columns.count, sizeof(column_t *)),
              .costs = zeros((size_t)columns.count, sizeof(int64_t))};
    open_columns(&r, columns.root);
    level_t *level = columns.root->level;
    int64_t found = 0;
    for (int64_t place = 0; place < values.count; place++) {
        const uint8_t *start = values.data + begin_of(&values, place);
        const uint8_t *end = values.data + begin_of(&values, place + 1);
        if (is_value(&values, place)) {
            r.field = -1;
            r.at = start;
            int64_t left = r.left;
            if (read_fields(&r, 0, start, end)) {
                fill(columns.root);
            } else {
                int64_t told[] = {place, r.status, r.at - start, r.field};
                memcpy(bad + 4 * found++, told, sizeof told);
                level_cut(level, place);
                if (r.status != TOO_LARGE)
                    r.left = left;
            }
        }
        level_close(level);
    }
    free(r.columns);
    free(r.costs);
    columns_give(&columns, rows);
    return found;
}
