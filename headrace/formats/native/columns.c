/* Columns of a schema: their memory, and their hand-over. */
#include "columns.h"

#include <stdio.h>

/* Rises with every change that the caller in Python has to know of: a library that was not compiled
 * again is refused. */
#define REVISION 3

int headrace_formats_revision(void) { return REVISION; }

/* Memory that is not there ends the process, as it does in librdkafka. */
static void *resized(void *start, size_t size) {
    void *found = realloc(start, size ? size : 1);
    if (found == NULL)
        abort();
    return found;
}

static void *zeros(size_t count, size_t size) {
    void *found = calloc(count ? count : 1, size);
    if (found == NULL)
        abort();
    return found;
}

/* --- values ----------------------------------------------------------------------------------- */

values_t values_of(const struct ArrowArray *array, int large) {
    static const int32_t nothing[1] = {0};
    const void *ends = array->buffers[1], *data = array->buffers[2];
    return (values_t){.valid = array->null_count == 0 ? NULL : array->buffers[0],
                      .data = data == NULL ? (const void *)nothing : data,
                      .ends = ends == NULL ? nothing : ends,
                      .offset = array->offset,
                      .count = array->length,
                      .large = large && ends != NULL};
}

/* --- opening ---------------------------------------------------------------------------------- */

typedef struct {
    const char *format;
    layout_t layout;
    int32_t width; /* bytes of a number */
} kind_t;

/* The types that are known, as Arrow writes them; of those with more, what they begin with. */
static const kind_t KINDS[] = {
    {"b", BITS, 0},     {"c", FIXED, 1},   {"s", FIXED, 2},   {"i", FIXED, 4},    {"l", FIXED, 8},
    {"f", FIXED, 4},    {"g", FIXED, 8},   {"u", VARIABLE, 0}, {"z", VARIABLE, 0}, {"tdD", FIXED, 4},
    {"ttm", FIXED, 4},  {"ttu", FIXED, 8}, {"ts", FIXED, 8},  {"d:", FIXED, 16},  {"w:", FIXED, 0},
    {"+s", STRUCT, 0},  {"+l", LIST, 0},   {"+m", LIST, 0},
};

static const kind_t *kind_of(const char *format) {
    for (size_t at = 0; at < sizeof KINDS / sizeof *KINDS; at++) {
        const char *known = KINDS[at].format;
        size_t size = strlen(known);
        int is_begin = known[size - 1] == ':' || strcmp(known, "ts") == 0;
        if (is_begin ? strncmp(format, known, size) == 0 : strcmp(format, known) == 0)
            return &KINDS[at];
    }
    return NULL;
}

/* Count a schema's columns; 0 where one has a type that is not known. */
static int32_t count_of(const struct ArrowSchema *schema) {
    int32_t count = 1;
    if (kind_of(schema->format) == NULL || schema->dictionary != NULL)
        return 0;
    for (int64_t at = 0; at < schema->n_children; at++) {
        int32_t more = count_of(schema->children[at]);
        if (more == 0)
            return 0;
        count += more;
    }
    return count;
}

static int make_column(column_t *column, const struct ArrowSchema *schema, level_t *level,
                       column_t **free_column) {
    const kind_t *kind = kind_of(schema->format);
    *column = (column_t){.format = schema->format,
                         .name = schema->name == NULL ? "" : schema->name,
                         .layout = kind->layout,
                         .number = column->number,
                         .width = kind->width,
                         .child_count = (int32_t)schema->n_children,
                         .level = level,
                         .next = level->first};
    column->name_size = strlen(column->name);
    level->first = column;
    if (kind->layout == LIST || kind->layout == VARIABLE) {
        column->next_variable = level->first_variable;
        level->first_variable = column;
    }
    int bits = 128;
    if (column->format[0] == 'd' && sscanf(column->format, "d:%d,%d,%d", &column->precision,
                                           &column->scale, &bits) < 2)
        return -1;
    if (column->format[0] == 'w' && sscanf(column->format, "w:%d", &column->width) < 1)
        return -1;
    if (bits != 128 || (kind->layout == LIST && column->child_count != 1))
        return -1;
    if (kind->layout == LIST)
        level = column->items = zeros(1, sizeof(level_t));
    column->children = *free_column;
    *free_column += column->child_count;
    for (int32_t at = 0; at < column->child_count; at++)
        if (make_column(&column->children[at], schema->children[at], level, free_column))
            return -1;
    return 0;
}

static void number_columns(column_t *column, int32_t *next) {
    column->number = (*next)++;
    for (int32_t at = 0; at < column->child_count; at++)
        number_columns(&column->children[at], next);
}

/* Give the columns of a level room for so many rows. What is after their rows is 0. */
static void level_resize(level_t *level, int64_t room) {
    size_t bits = (size_t)(room + 7) / 8, had = (size_t)(level->room + 7) / 8;
    for (column_t *each = level->first; each != NULL; each = each->next) {
        each->valid = resized(each->valid, bits);
        memset(each->valid + had, 0, bits - had);
        size_t width = (size_t)each->width;
        if (each->layout == BITS) {
            each->data = resized(each->data, bits);
            memset(each->data + had, 0, bits - had);
        } else if (each->layout == FIXED) {
            each->data = resized(each->data, (size_t)room * width);
            memset(each->data + (size_t)level->room * width, 0, (size_t)(room - level->room) * width);
        } else if (each->layout != STRUCT) {
            int is_new = each->ends == NULL;
            each->ends = resized(each->ends, ((size_t)room + 1) * sizeof *each->ends);
            if (is_new)
                each->ends[0] = 0;
        }
    }
    level->room = room;
}

static void resize_all(column_t *column) {
    if (column->layout == LIST)
        level_resize(column->items, 0);
    for (int32_t at = 0; at < column->child_count; at++)
        resize_all(&column->children[at]);
}

int columns_open(columns_t *columns, const struct ArrowSchema *schema, int64_t rows) {
    *columns = (columns_t){0};
    int32_t count = count_of(schema), next = 0;
    if (count == 0 || kind_of(schema->format)->layout != STRUCT)
        return -1;
    columns->root = zeros((size_t)count, sizeof(column_t));
    columns->count = count;
    level_t *level = zeros(1, sizeof(level_t));
    column_t *free_column = columns->root + 1;
    int failed = make_column(columns->root, schema, level, &free_column);
    if (failed) {
        columns_drop(columns);
        return -1;
    }
    number_columns(columns->root, &next);
    level_resize(level, rows);
    resize_all(columns->root);
    return 0;
}

/* --- growing and undoing ---------------------------------------------------------------------- */

void level_grow(level_t *level) { level_resize(level, level->room ? 2 * level->room : 64); }

void column_grow(column_t *column, size_t more) {
    size_t size = column->size ? column->size : 256;
    while (size - column->used <= more)
        size *= 2;
    column->data = resized(column->data, size);
    column->size = size;
}

static void clear_bits(uint8_t *bits, int64_t from, int64_t to) {
    for (int64_t at = from; at < to; at++)
        bits[at / 8] &= (uint8_t) ~(1 << (at % 8));
}

void level_cut(level_t *level, int64_t from) {
    int64_t to = level->count < level->room ? level->count + 1 : level->count;
    for (column_t *each = level->first; each != NULL; each = each->next) {
        clear_bits(each->valid, from, to);
        if (each->layout == BITS)
            clear_bits((uint8_t *)each->data, from, to);
        else if (each->layout == FIXED)
            memset(each->data + from * each->width, 0, (size_t)((to - from) * each->width));
        else if (each->layout == VARIABLE)
            each->used = (size_t)each->ends[from];
        else if (each->layout == LIST)
            level_cut(each->items, each->ends[from]);
    }
    level->count = from;
}

/* --- hand-over -------------------------------------------------------------------------------- */

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
    for (int64_t at = 0; at < array->n_children; at++)
        if (owned->children[at].release != NULL)
            owned->children[at].release(&owned->children[at]);
    free(owned);
    array->release = NULL;
}

/* Make an array whose children, and what points at them, lie after it in one piece of memory. */
static owned_t *make_array(struct ArrowArray *array, int64_t length, int buffers, int32_t children) {
    size_t each = sizeof(struct ArrowArray) + sizeof(struct ArrowArray *);
    owned_t *owned = zeros(1, sizeof(owned_t) + (size_t)children * each);
    owned->pointers = (struct ArrowArray **)(void *)&owned->children[children];
    for (int32_t at = 0; at < children; at++)
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

static int64_t nulls_of(const uint8_t *valid, int64_t count) {
    int64_t found = 0, at = 0;
    for (; at + 64 <= count; at += 64) {
        uint64_t bits;
        memcpy(&bits, valid + at / 8, 8);
        found += __builtin_popcountll(bits);
    }
    for (; at < count; at++)
        found += valid[at / 8] >> (at % 8) & 1;
    return count - found;
}

static void give_column(column_t *column, struct ArrowArray *array) {
    static const int BUFFERS[] = {[STRUCT] = 1, [LIST] = 2, [BITS] = 2, [FIXED] = 2, [VARIABLE] = 3};
    int64_t count = column->level->count;
    owned_t *owned = make_array(array, count, BUFFERS[column->layout], column->child_count);
    array->null_count = nulls_of(column->valid, count);
    if (array->null_count == 0) {
        free(column->valid);
    } else {
        owned->buffers[0] = column->valid;
    }
    if (column->layout == LIST) {
        owned->buffers[1] = column->ends;
    } else if (column->layout == VARIABLE) {
        owned->buffers[1] = column->ends;
        owned->buffers[2] = resized(column->data, column->used);
    } else if (column->layout != STRUCT) {
        owned->buffers[1] = column->data;
    }
    column->valid = NULL;
    column->data = NULL;
    column->ends = NULL;
    for (int32_t at = 0; at < column->child_count; at++)
        give_column(&column->children[at], &owned->children[at]);
}

void columns_give(columns_t *columns, struct ArrowArray *array) {
    give_column(columns->root, array);
    columns_drop(columns);
}

static void drop_column(column_t *column) {
    free(column->valid);
    free(column->data);
    free(column->ends);
    /* a list that could not be opened has none of its children yet */
    for (int32_t at = 0; column->children != NULL && at < column->child_count; at++)
        drop_column(&column->children[at]);
    free(column->items);
}

void columns_drop(columns_t *columns) {
    if (columns->root == NULL)
        return;
    level_t *level = columns->root->level;
    drop_column(columns->root);
    free(level);
    free(columns->root);
    *columns = (columns_t){0};
}

/* --- text ------------------------------------------------------------------------------------- */

size_t sequence(const uint8_t *text, size_t most) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t length = *text < 0x80         ? 1
                    : *text >> 5 == 0x06 ? 2
                    : *text >> 4 == 0x0e ? 3
                    : *text >> 3 == 0x1e ? 4
                                         : 0;
    if (length > most)
        return 0;
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

int is_utf8(const uint8_t *text, size_t size) {
    for (size_t at = 0; at < size;) {
        uint64_t word;
        if (size - at >= 8 && (memcpy(&word, text + at, 8), !(word & 0x8080808080808080u))) {
            at += 8;
            continue;
        }
        size_t length = sequence(text + at, size - at);
        if (length == 0)
            return 0;
        at += length;
    }
    return 1;
}
