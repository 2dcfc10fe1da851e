/* Records that are produced from Arrow columns, by a producer of the Python client.
 *
 * The library is a plugin of that producer's (``plugin.library.paths``): librdkafka tells it of the
 * client when it is made, and of each record that was taken or was not. So it is known which client
 * to produce with, and what became of records that Python has no object of.
 */
#ifndef HEADRACE_PRODUCER_H
#define HEADRACE_PRODUCER_H

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"

/* rd_kafka_vtype_t, and the flag that has a record copied */
enum {
    V_END,
    V_TOPIC,
    V_TOPIC_HANDLE,
    V_PARTITION,
    V_VALUE,
    V_KEY,
    V_OPAQUE,
    V_FLAGS,
    V_TIMESTAMP,
    V_HEADER,
    V_HEADERS
};
#define COPY 0x2

/* RD_KAFKA_RESP_ERR__QUEUE_FULL, _FAIL: a record that is offered again, and any other trouble */
#define QUEUE_FULL (-184)
#define FAIL (-196)

/* RD_KAFKA_RESP_ERR__PURGE_QUEUE, _PURGE_INFLIGHT: a record that goes down with its transaction */
#define IS_CONSEQUENCE(code) ((code) == -152 || (code) == -151)

#define PLUGIN "headrace"

typedef struct {
    int32_t code;
    char topic[256];
    char text[256];
} failure_t;

typedef struct {
    rd_kafka_t *client;
    pthread_mutex_t lock;
    failure_t failure; /* the first one that is no consequence; its code is 0 while there is none */
} producer_t;

/* Values of a column of bytes, as Arrow has them. */
typedef struct {
    const uint8_t *valid; /* NULL where all are there */
    const int32_t *ends;
    const char *data;
    int64_t offset;
} values_t;

/* Headers of a column, as Arrow has lists of a name and a value. */
typedef struct {
    const uint8_t *valid; /* NULL where all are there */
    const int32_t *ends;
    int64_t offset;
    values_t names, values;
} lists_t;

/* The client that this thread made last. */
static __thread producer_t *newest;

/* Called by the client's threads, and by that which offers a record which is refused at once. */
static int on_acknowledgement(rd_kafka_t *client, message_t *message, void *opaque) {
    (void)client;
    producer_t *producer = opaque;
    if (message->err == 0 || message->err == QUEUE_FULL)
        return 0;
    pthread_mutex_lock(&producer->lock);
    failure_t *failure = &producer->failure;
    if (failure->code == 0 || (IS_CONSEQUENCE(failure->code) && !IS_CONSEQUENCE(message->err))) {
        failure->code = message->err;
        snprintf(failure->text, sizeof failure->text, "%s", kafka.err2str(message->err));
        snprintf(
            failure->topic, sizeof failure->topic, "%s",
            message->topic ? kafka.topic_name(message->topic) : "");
    }
    pthread_mutex_unlock(&producer->lock);
    return 0;
}

static int on_destroy(rd_kafka_t *client, void *opaque) {
    (void)client;
    producer_t *producer = opaque;
    if (newest == producer) /* one that could not be made after all */
        newest = NULL;
    /* The rest of it, some 600 bytes, stays: librdkafka acknowledges what it drops after this. */
    return 0;
}

static int on_new(
    rd_kafka_t *client, const rd_kafka_conf_t *conf, void *opaque, char *why, size_t size) {
    (void)conf, (void)opaque, (void)why, (void)size;
    producer_t *producer = calloc(1, sizeof *producer);
    if (producer == NULL)
        abort();
    producer->client = client;
    pthread_mutex_init(&producer->lock, NULL);
    int code = kafka.interceptor_add_on_destroy(client, PLUGIN, on_destroy, producer);
    if (code != 0)
        return code;
    code = kafka.interceptor_add_on_acknowledgement(client, PLUGIN, on_acknowledgement, producer);
    newest = code == 0 ? producer : NULL;
    return code;
}

/* What librdkafka calls a plugin by. */
int conf_init(rd_kafka_conf_t *conf, void **opaque, char *why, size_t size) {
    (void)opaque;
    if (kafka.version == NULL) {
        snprintf(why, size, "the library is not bound");
        return FAIL;
    }
    return kafka.conf_interceptor_add_on_new(conf, PLUGIN, on_new, NULL);
}

/* Return the client that this thread made last with the plugin, once; NULL if there is none. It is
 * there for as long as the client is. */
producer_t *headrace_newest(void) {
    producer_t *found = newest;
    newest = NULL;
    return found;
}

/* Forget what was not taken before. */
void headrace_forget(producer_t *producer) {
    pthread_mutex_lock(&producer->lock);
    producer->failure.code = 0;
    pthread_mutex_unlock(&producer->lock);
}

/* Copy the first failure since then; return its code, 0 if there is none. */
int32_t headrace_failure(producer_t *producer, failure_t *failure) {
    pthread_mutex_lock(&producer->lock);
    *failure = producer->failure;
    pthread_mutex_unlock(&producer->lock);
    return failure->code;
}

/* Set what there is of a value; a value of no bytes is there all the same. */
static void look_up_value(const values_t *column, int64_t at, const char **data, size_t *size) {
    int64_t place = column->offset + at;
    *data = NULL;
    *size = 0;
    if (column->valid != NULL && !(column->valid[place / 8] >> (place % 8) & 1))
        return;
    *data = column->data == NULL ? "" : column->data + column->ends[place];
    *size = (size_t)(column->ends[place + 1] - column->ends[place]);
}

/* Return the headers of a record, NULL where it has none. */
static rd_kafka_headers_t *headers_at(const lists_t *column, int64_t at) {
    int64_t place = column->offset + at;
    if (column->valid != NULL && !(column->valid[place / 8] >> (place % 8) & 1))
        return NULL;
    int32_t first = column->ends[place], end = column->ends[place + 1];
    if (first == end)
        return NULL;
    rd_kafka_headers_t *headers = kafka.headers_new((size_t)(end - first));
    for (int32_t each = first; each < end; each++) {
        const char *name, *value;
        size_t name_size, value_size;
        look_up_value(&column->names, each, &name, &name_size);
        look_up_value(&column->values, each, &value, &value_size);
        kafka.header_add(headers, name, (ssize_t)name_size, value, (ssize_t)value_size);
    }
    return headers;
}

/* Produce the records from ``start`` to ``end`` with the headers, to the partitions and with the
 * times in milliseconds that are given; NULL is for no headers, and leaves the others to the client.
 * Returns the place of the first one that the client did not take, or ``end``. */
int64_t headrace_produce(
    producer_t *producer, const char *topic, const values_t *keys, const values_t *values,
    const lists_t *headers, const int32_t *partitions, const int64_t *times, int64_t start,
    int64_t end) {
    rd_kafka_topic_t *handle = kafka.topic_new(producer->client, topic, NULL);
    int64_t at = start;
    for (; handle != NULL && at < end; at++) {
        const char *key, *value;
        size_t key_size, value_size;
        look_up_value(keys, at, &key, &key_size);
        look_up_value(values, at, &value, &value_size);
        rd_kafka_headers_t *own = headers == NULL ? NULL : headers_at(headers, at);
        int code = kafka.producev(
            producer->client, V_TOPIC_HANDLE, handle, V_PARTITION,
            partitions == NULL ? (int32_t)-1 : partitions[at], V_KEY, key, key_size, V_VALUE, value,
            value_size, V_FLAGS, COPY, V_TIMESTAMP, times == NULL ? (int64_t)0 : times[at],
            V_HEADERS, own, V_END);
        if (code != 0) {
            if (own != NULL) /* they are the client's only with a record that it took */
                kafka.headers_destroy(own);
            break;
        }
    }
    if (handle != NULL)
        kafka.topic_destroy(handle);
    return at;
}

#endif
