/* A consumer whose records come in Arrow columns.
 *
 * It stands on the librdkafka that the Python client has loaded, so that neither a second library
 * nor its headers are needed. No Python is called from here, and none of the interpreter's locks is
 * needed. A consumer is used by one thread. Its callbacks run within calls of that thread, because
 * logs and errors are queued.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#include "client.h"
#include "columns.h"
#include "producer.h"

/* Rises with every change that the caller in Python has to know of: a library that was not compiled
 * again is refused. */
#define REVISION 5

int headrace_revision(void) { return REVISION; }

/* Get ready, on the client library that ``module``, a loaded library, depends on. Returns 0, or -1
 * and says why. Harmless if called again. */
int headrace_bind(const char *module, char *why, size_t size) {
    return look_up_client(module, why, size);
}

/* Messages that are taken from the client in one call, as a channel without columns does. */
#define MESSAGES 1000

/* Bytes that a message is taken to have before one has come: as many as a broker takes by itself. */
#define TYPICAL (1 << 20)

/* Complaints of the client as a whole that are kept for one take: more would only repeat them. */
#define MOST_COMPLAINTS 100

/* What came in place of a record, or beside records. */
enum { OF_PARTITION, OF_CLIENT, OF_LOG };

typedef struct {
    int32_t kind;
    int32_t code; /* of librdkafka's errors, or the level of a log line */
    int32_t partition;
    int64_t offset;
    char topic[256];
    char text[256];
} event_t;

typedef struct {
    rd_kafka_t *client;
    rd_kafka_queue_t *queue;
    message_t *messages[MESSAGES];
    int64_t typical; /* bytes of a message, as of those that came last */
    part_t *parts;
    event_t *events;
    int32_t part_count, part_room, event_count, event_room;
} consumer_t;

/* Room for one more element of an array that has ``count``, and can have ``*room``. */
static void *extended(void *start, int32_t count, int32_t *room, size_t size) {
    if (count < *room)
        return start;
    *room = *room ? 2 * *room : 16;
    start = realloc(start, (size_t)*room * size);
    if (start == NULL)
        abort();
    return start;
}

static event_t *next_event(consumer_t *consumer, int32_t kind, int32_t code, const char *text) {
    if (kind != OF_PARTITION && consumer->event_count >= MOST_COMPLAINTS)
        return NULL;
    consumer->events =
        extended(consumer->events, consumer->event_count, &consumer->event_room, sizeof(event_t));
    event_t *event = &consumer->events[consumer->event_count++];
    *event = (event_t){.kind = kind, .code = code, .partition = -1};
    snprintf(event->text, sizeof event->text, "%s", text ? text : "");
    return event;
}

static void on_error(rd_kafka_t *client, int code, const char *reason, void *opaque) {
    (void)client;
    next_event(opaque, OF_CLIENT, code, reason);
}

static void on_log(const rd_kafka_t *client, int level, const char *facility, const char *line) {
    event_t *event = next_event(kafka.opaque(client), OF_LOG, level, line);
    if (event != NULL)
        snprintf(event->topic, sizeof event->topic, "%s", facility);
}

static rd_kafka_conf_t *configured(
    const char **names, const char **values, int count, char *why, size_t size) {
    rd_kafka_conf_t *conf = kafka.conf_new();
    for (int at = 0; at < count; at++) {
        if (kafka.conf_set(conf, names[at], values[at], why, size) != CONF_OK) {
            kafka.conf_destroy(conf);
            return NULL;
        }
    }
    kafka.conf_set_error_cb(conf, on_error);
    kafka.conf_set_log_cb(conf, on_log);
    return conf;
}

/* Make a consumer with so many properties. Returns NULL and says why if librdkafka refuses one. */
consumer_t *headrace_open(
    const char **names, const char **values, int count, char *why, size_t size) {
    rd_kafka_conf_t *conf = configured(names, values, count, why, size);
    if (conf == NULL)
        return NULL;
    consumer_t *consumer = calloc(1, sizeof *consumer);
    if (consumer == NULL)
        abort();
    consumer->typical = TYPICAL;
    kafka.conf_set_opaque(conf, consumer);
    kafka.conf_set(conf, "log.queue", "true", NULL, 0);
    consumer->client = kafka.new(CONSUMER, conf, why, size);
    if (consumer->client == NULL) {
        kafka.conf_destroy(conf);
        free(consumer);
        return NULL;
    }
    kafka.poll_set_consumer(consumer->client);
    rd_kafka_error_t *error = kafka.set_log_queue(consumer->client, NULL);
    if (error != NULL)
        kafka.error_destroy(error);
    consumer->queue = kafka.queue_get_consumer(consumer->client);
    return consumer;
}

static void clear(consumer_t *consumer) {
    for (int32_t at = 0; at < consumer->part_count; at++)
        drop_part(&consumer->parts[at]);
    consumer->part_count = consumer->event_count = 0;
}

/* Release the client. Blocks until its threads have ended. */
void headrace_close(consumer_t *consumer) {
    kafka.consumer_close(consumer->client);
    kafka.queue_destroy(consumer->queue);
    kafka.destroy(consumer->client);
    clear(consumer);
    free(consumer->parts);
    free(consumer->events);
    free(consumer);
}

/* --- what is fetched -------------------------------------------------------------------------- */

enum { ASSIGN, UNASSIGN, PAUSE, RESUME };

static int refused(rd_kafka_error_t *error, char *why, size_t size) {
    if (error == NULL)
        return 0;
    snprintf(why, size, "%s", kafka.error_string(error));
    kafka.error_destroy(error);
    return -1;
}

/* Tell the client which of ``count`` partitions to fetch, and from where. An epoch that is not
 * negative is one under which the log led to the offset, and has the client ask whether it still
 * does. Returns 0, or -1 and says why. Whether a pause took effect for a partition is not asked. */
int headrace_direct(
    consumer_t *consumer, int what, const char **topics, const int32_t *partitions,
    const int64_t *offsets, const int32_t *epochs, int count, char *why, size_t size) {
    places_t *places = kafka.topic_partition_list_new(count);
    int answer = 0;
    for (int at = 0; at < count; at++) {
        place_t *place = kafka.topic_partition_list_add(places, topics[at], partitions[at]);
        place->offset = offsets[at];
        kafka.topic_partition_set_leader_epoch(place, epochs[at]);
    }
    if (what == ASSIGN)
        answer = refused(kafka.incremental_assign(consumer->client, places), why, size);
    else if (what == UNASSIGN)
        answer = refused(kafka.incremental_unassign(consumer->client, places), why, size);
    else {
        int code = (what == PAUSE ? kafka.pause_partitions : kafka.resume_partitions)(
            consumer->client, places);
        if (code != 0) {
            snprintf(why, size, "%s", kafka.err2str(code));
            answer = -1;
        }
    }
    kafka.topic_partition_list_destroy(places);
    return answer;
}

/* Have the client learn the leaders of a topic. Blocks. Returns 0 if a broker answered. */
int headrace_look_up(consumer_t *consumer, const char *topic, int timeout_ms) {
    const rd_kafka_metadata_t *metadata;
    rd_kafka_topic_t *handle = kafka.topic_new(consumer->client, topic, NULL);
    if (handle == NULL)
        return -1;
    int code = kafka.metadata(consumer->client, 0, handle, &metadata, timeout_ms);
    if (code == 0)
        kafka.metadata_destroy(metadata);
    kafka.topic_destroy(handle);
    return code == 0 ? 0 : -1;
}

/* Return the end of a partition as last seen, a negative number if it was not seen. */
int64_t headrace_end(consumer_t *consumer, const char *topic, int32_t partition) {
    int64_t low = -1, high = -1;
    int code = kafka.get_watermark_offsets(consumer->client, topic, partition, &low, &high);
    return code == 0 ? high : -1;
}

/* --- fetching --------------------------------------------------------------------------------- */

/* Offsets within a column have 32 bits; a part that is as good as full is not added to. */
static int has_room(const part_t *part, const message_t *message) {
    return part->value.data.used + message->value_size < INT32_MAX &&
           part->key.data.used + message->key_size < INT32_MAX &&
           part->header_name.data.used < INT32_MAX / 2 &&
           part->header_value.data.used < INT32_MAX / 2;
}

static part_t *part_of(consumer_t *consumer, const message_t *message) {
    const char *topic = kafka.topic_name(message->topic);
    for (int32_t at = consumer->part_count - 1; at >= 0; at--) {
        part_head_t *head = &consumer->parts[at].head;
        if (head->partition == message->partition && strcmp(head->topic, topic) == 0) {
            if (has_room(&consumer->parts[at], message))
                return &consumer->parts[at];
            break;
        }
    }
    consumer->parts =
        extended(consumer->parts, consumer->part_count, &consumer->part_room, sizeof(part_t));
    part_t *part = &consumer->parts[consumer->part_count++];
    memset(part, 0, sizeof *part);
    snprintf(part->head.topic, sizeof part->head.topic, "%s", topic);
    part->head.partition = message->partition;
    return part;
}

static void put_error(consumer_t *consumer, const message_t *message) {
    const char *text = kafka.message_errstr(message);
    event_t *event = next_event(consumer, OF_PARTITION, message->err, text);
    event->partition = message->partition;
    event->offset = message->offset;
    if (message->topic != NULL)
        snprintf(event->topic, sizeof event->topic, "%s", kafka.topic_name(message->topic));
}

/* Note of what epoch the last message of a part is, as of a run of it. */
static void end_part(part_t *part, const message_t *last) {
    if (part != NULL)
        part->head.leader_epoch = kafka.message_leader_epoch(last);
}

/* Take over ``count`` messages; return the bytes of their keys, values and headers. */
static int64_t put_messages(consumer_t *consumer, ssize_t count) {
    const message_t *before = NULL;
    part_t *part = NULL;
    int64_t bytes = 0;
    for (ssize_t at = 0; at < count; at++) {
        const message_t *message = consumer->messages[at];
        if (message->err != 0) {
            put_error(consumer, message);
            continue;
        }
        if (before == NULL || message->topic != before->topic ||
            message->partition != before->partition || !has_room(part, message)) {
            end_part(part, before);
            part = part_of(consumer, message);
        }
        bytes += put_record(part, message);
        before = message;
    }
    end_part(part, before);
    for (ssize_t at = 0; at < count; at++)
        kafka.message_destroy(consumer->messages[at]);
    return bytes;
}

/* How many messages are within so many bytes, if they are like those before; some at least. */
static size_t messages_in(const consumer_t *consumer, int64_t bytes) {
    int64_t count = bytes / (consumer->typical + 1) + 1;
    return count < MESSAGES ? (size_t)count : MESSAGES;
}

/* Take what has come, up to a thousand records more than the limits, or fewer where records are
 * large; what was taken before and not handed over is dropped. Where nothing has come, wait for the
 * first record so long. Returns how many parts there are; there may be events beside them. */
int32_t headrace_take(
    consumer_t *consumer, int64_t max_records, int64_t max_bytes, int timeout_ms) {
    int64_t records = 0, bytes = 0;
    clear(consumer);
    while (records < max_records && bytes < max_bytes) {
        ssize_t count = kafka.consume_batch_queue(
            consumer->queue, 0, consumer->messages, messages_in(consumer, max_bytes - bytes));
        if (count == 0 && records == 0 && timeout_ms > 0)
            count = kafka.consume_batch_queue(
                consumer->queue, timeout_ms, consumer->messages, 1);
        if (count <= 0)
            break;
        int64_t more = put_messages(consumer, count);
        if (more > 0)
            consumer->typical = more / count;
        bytes += more;
        records += count;
        timeout_ms = 0;
    }
    return consumer->part_count;
}

/* Say what is in a part. */
const part_head_t *headrace_part(const consumer_t *consumer, int32_t number) {
    part_t *part = &consumer->parts[number];
    part->head.bytes = weight_of(part);
    return &part->head;
}

/* Hand a part over: a struct of key, value, offset, timestamp, timestamp type and headers. */
void headrace_give(consumer_t *consumer, int32_t number, struct ArrowArray *array) {
    part_t *part = &consumer->parts[number];
    int64_t count = part->head.count;
    owned_t *owned = make(array, count, 1, 6);
    give_bytes(&owned->children[0], &part->key);
    give_bytes(&owned->children[1], &part->value);
    give_numbers(&owned->children[2], &part->offset, count);
    give_numbers(&owned->children[3], &part->timestamp, count);
    give_numbers(&owned->children[4], &part->timestamp_type, count);
    give_headers(&owned->children[5], part);
}

int32_t headrace_event_count(const consumer_t *consumer) { return consumer->event_count; }
const event_t *headrace_event(const consumer_t *consumer, int32_t number) {
    return &consumer->events[number];
}
