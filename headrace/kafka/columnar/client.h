/* What is used of librdkafka, looked up in the library that the Python client has loaded.
 *
 * All of it is public: the functions, and the two structures that are read. Both are the same in all
 * of librdkafka 2.
 */
#ifndef HEADRACE_CLIENT_H
#define HEADRACE_CLIENT_H

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>

typedef struct rd_kafka_s rd_kafka_t;
typedef struct rd_kafka_conf_s rd_kafka_conf_t;
typedef struct rd_kafka_queue_s rd_kafka_queue_t;
typedef struct rd_kafka_topic_s rd_kafka_topic_t;
typedef struct rd_kafka_error_s rd_kafka_error_t;
typedef struct rd_kafka_headers_s rd_kafka_headers_t;
typedef struct rd_kafka_metadata_s rd_kafka_metadata_t;

typedef struct {
    int err;
    rd_kafka_topic_t *topic;
    int32_t partition;
    void *value;
    size_t value_size;
    void *key;
    size_t key_size;
    int64_t offset;
    void *private;
} message_t;

typedef struct {
    char *topic;
    int32_t partition;
    int64_t offset;
    void *metadata;
    size_t metadata_size;
    void *opaque;
    int err;
    void *private;
} place_t;

typedef struct {
    int count;
    int size;
    place_t *places;
} places_t;

typedef void error_cb_t(rd_kafka_t *, int, const char *, void *);
typedef void log_cb_t(const rd_kafka_t *, int, const char *, const char *);
typedef int new_cb_t(rd_kafka_t *, const rd_kafka_conf_t *, void *, char *, size_t);
typedef int destroy_cb_t(rd_kafka_t *, void *);
typedef int message_cb_t(rd_kafka_t *, message_t *, void *);

/* rd_kafka_type_t and rd_kafka_conf_res_t */
#define CONSUMER 1
#define CONF_OK 0

#define FUNCTIONS(DO)                                                                             \
    DO(int, version, (void))                                                                      \
    DO(rd_kafka_conf_t *, conf_new, (void))                                                       \
    DO(void, conf_destroy, (rd_kafka_conf_t *))                                                   \
    DO(int, conf_set, (rd_kafka_conf_t *, const char *, const char *, char *, size_t))            \
    DO(void, conf_set_opaque, (rd_kafka_conf_t *, void *))                                        \
    DO(void, conf_set_error_cb, (rd_kafka_conf_t *, error_cb_t *))                                \
    DO(void, conf_set_log_cb, (rd_kafka_conf_t *, log_cb_t *))                                    \
    DO(rd_kafka_t *, new, (int, rd_kafka_conf_t *, char *, size_t))                               \
    DO(void *, opaque, (const rd_kafka_t *))                                                      \
    DO(rd_kafka_error_t *, set_log_queue, (rd_kafka_t *, rd_kafka_queue_t *))                     \
    DO(int, poll_set_consumer, (rd_kafka_t *))                                                    \
    DO(int, consumer_close, (rd_kafka_t *))                                                       \
    DO(void, destroy, (rd_kafka_t *))                                                             \
    DO(rd_kafka_queue_t *, queue_get_consumer, (rd_kafka_t *))                                    \
    DO(void, queue_destroy, (rd_kafka_queue_t *))                                                 \
    DO(ssize_t, consume_batch_queue, (rd_kafka_queue_t *, int, message_t **, size_t))             \
    DO(void, message_destroy, (message_t *))                                                      \
    DO(int64_t, message_timestamp, (const message_t *, int *))                                    \
    DO(int32_t, message_leader_epoch, (const message_t *))                                        \
    DO(int, message_headers, (const message_t *, rd_kafka_headers_t **))                          \
    DO(const char *, message_errstr, (const message_t *))                                         \
    DO(int, header_get_all,                                                                       \
       (const rd_kafka_headers_t *, size_t, const char **, const void **, size_t *))              \
    DO(rd_kafka_headers_t *, headers_new, (size_t))                                               \
    DO(int, header_add,                                                                           \
       (rd_kafka_headers_t *, const char *, ssize_t, const void *, ssize_t))                      \
    DO(void, headers_destroy, (rd_kafka_headers_t *))                                             \
    DO(rd_kafka_topic_t *, topic_new, (rd_kafka_t *, const char *, void *))                       \
    DO(const char *, topic_name, (const rd_kafka_topic_t *))                                      \
    DO(void, topic_destroy, (rd_kafka_topic_t *))                                                 \
    DO(int, metadata,                                                                             \
       (rd_kafka_t *, int, rd_kafka_topic_t *, const rd_kafka_metadata_t **, int))                \
    DO(void, metadata_destroy, (const rd_kafka_metadata_t *))                                     \
    DO(int, get_watermark_offsets, (rd_kafka_t *, const char *, int32_t, int64_t *, int64_t *))   \
    DO(places_t *, topic_partition_list_new, (int))                                               \
    DO(place_t *, topic_partition_list_add, (places_t *, const char *, int32_t))                  \
    DO(void, topic_partition_list_destroy, (places_t *))                                          \
    DO(void, topic_partition_set_leader_epoch, (place_t *, int32_t))                              \
    DO(rd_kafka_error_t *, incremental_assign, (rd_kafka_t *, const places_t *))                  \
    DO(rd_kafka_error_t *, incremental_unassign, (rd_kafka_t *, const places_t *))                \
    DO(int, pause_partitions, (rd_kafka_t *, places_t *))                                         \
    DO(int, resume_partitions, (rd_kafka_t *, places_t *))                                        \
    DO(int, conf_interceptor_add_on_new,                                                          \
       (rd_kafka_conf_t *, const char *, new_cb_t *, void *))                                     \
    DO(int, interceptor_add_on_destroy,                                                           \
       (rd_kafka_t *, const char *, destroy_cb_t *, void *))                                      \
    DO(int, interceptor_add_on_acknowledgement,                                                   \
       (rd_kafka_t *, const char *, message_cb_t *, void *))                                      \
    DO(int, producev, (rd_kafka_t *, ...))                                                        \
    DO(const char *, err2str, (int))                                                              \
    DO(const char *, error_string, (const rd_kafka_error_t *))                                    \
    DO(void, error_destroy, (rd_kafka_error_t *))

static struct {
#define DECLARE(result, name, arguments) result(*name) arguments;
    FUNCTIONS(DECLARE)
} kafka;

/* Look librdkafka's functions up in what ``module``, a loaded library, depends on. Returns 0, or -1
 * and says why. */
static int look_up_client(const char *module, char *why, size_t size) {
    void *found, *library = dlopen(module, RTLD_NOW | RTLD_NOLOAD);
    if (library == NULL) {
        snprintf(why, size, "%s is not loaded", module);
        return -1;
    }
#define LOOK_UP(result, name, arguments)                                                          \
    found = dlsym(library, "rd_kafka_" #name);                                                    \
    if (found == NULL) {                                                                          \
        snprintf(why, size, "librdkafka has no rd_kafka_" #name);                                 \
        return -1;                                                                                \
    }                                                                                             \
    memcpy(&kafka.name, &found, sizeof found);
    FUNCTIONS(LOOK_UP)
    if (kafka.version() >> 24 != 2) {
        snprintf(why, size, "librdkafka is of version 0x%08x, not 2", (unsigned)kafka.version());
        return -1;
    }
    return 0;
}

#endif
