/* Columns of a schema that grow value by value, and are handed over by Arrow's C data interface.
 *
 * A decoder opens columns with as many rows as there are values, fills the fields of a row, and
 * closes the row or undoes it. What it does not fill is null. No Python is called from here.
 */
#ifndef HEADRACE_FORMATS_COLUMNS_H
#define HEADRACE_FORMATS_COLUMNS_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* What the files of the library share is of no other library. */
#pragma GCC visibility push(hidden)

/* --- Arrow's C data interface ----------------------------------------------------------------- */

struct ArrowSchema {
    const char *format, *name, *metadata;
    int64_t flags, n_children;
    struct ArrowSchema **children;
    struct ArrowSchema *dictionary;
    void (*release)(struct ArrowSchema *);
    void *private_data;
};

struct ArrowArray {
    int64_t length, null_count, offset, n_buffers, n_children;
    const void **buffers;
    struct ArrowArray **children;
    struct ArrowArray *dictionary;
    void (*release)(struct ArrowArray *);
    void *private_data;
};

/* --- values to decode ------------------------------------------------------------------------- */

/* Values of an array of binary, or of large_binary: nothing is copied. */
typedef struct {
    const uint8_t *valid, *data;
    const void *ends;
    int64_t offset, count;
    int large;
} values_t;

values_t values_of(const struct ArrowArray *array, int large);

static inline int is_value(const values_t *values, int64_t place) {
    int64_t bit = values->offset + place;
    return values->valid == NULL || (values->valid[bit / 8] >> (bit % 8) & 1);
}

/* Where the value at a place begins; that of the place after the last one is where it ends. */
static inline int64_t begin_of(const values_t *values, int64_t place) {
    int64_t at = values->offset + place;
    return values->large ? ((const int64_t *)values->ends)[at]
                         : ((const int32_t *)values->ends)[at];
}

/* --- columns ---------------------------------------------------------------------------------- */

typedef struct column column_t;

/* Rows that several columns have in common: those of a schema, or the items of a list. */
typedef struct {
    int64_t count, room;
    column_t *first;          /* by ``next`` */
    column_t *first_variable; /* those that have ends, by ``next_variable`` */
} level_t;

typedef enum { STRUCT, LIST, BITS, FIXED, VARIABLE } layout_t;

struct column {
    const char *format, *name;
    size_t name_size;
    layout_t layout;
    int32_t number; /* among all columns, a parent before its children */
    int32_t width, precision, scale;
    int32_t child_count;
    column_t *children; /* of a list: its items */
    level_t *level;     /* the rows that it has a value for each of */
    level_t *items;     /* of a list: the rows of its children */
    column_t *next, *next_variable;
    uint8_t *valid;
    char *data;    /* numbers, bits, or text */
    int32_t *ends; /* of text and items: where each begins, and the last one ends */
    size_t used, size;
};

typedef struct {
    column_t *root; /* a struct, the first of ``count`` columns */
    int32_t count;
} columns_t;

/* Open columns of a struct with room for so many rows. They have the schema's texts, so it has to
 * live as long. Returns 0, or -1 where it has a type that is not known here. */
int columns_open(columns_t *columns, const struct ArrowSchema *schema, int64_t rows);

/* Hand the closed rows over as one array, and forget them. */
void columns_give(columns_t *columns, struct ArrowArray *array);

/* Forget the columns without handing them over. */
void columns_drop(columns_t *columns);

/* Make room for more rows of a level. */
void level_grow(level_t *level);

/* Undo the rows of a level from one on, with the one that is not closed. */
void level_cut(level_t *level, int64_t from);

/* Make room for bytes of text after those of a column. */
void column_grow(column_t *column, size_t more);

/* Say that a column has a value in the row that is open. */
static inline void fill(column_t *column) {
    int64_t row = column->level->count;
    column->valid[row / 8] |= (uint8_t)(1 << (row % 8));
}

/* Where a number of the open row belongs. */
static inline void *place_of(column_t *column) {
    return column->data + column->level->count * column->width;
}

static inline void put_bit(column_t *column, int value) {
    int64_t row = column->level->count;
    if (value)
        column->data[row / 8] = (char)(column->data[row / 8] | 1 << (row % 8));
    fill(column);
}

/* Return where so many bytes of text can be written; ``used`` has to grow by as many as were. */
static inline char *text_of(column_t *column, size_t size) {
    if (column->size - column->used <= size)
        column_grow(column, size);
    return column->data + column->used;
}

static inline void put_text(column_t *column, const void *text, size_t size) {
    memcpy(text_of(column, size), text, size);
    column->used += size;
    fill(column);
}

/* Open a row of a level; that of a list's items, for each item. */
static inline void level_open(level_t *level) {
    if (level->count == level->room)
        level_grow(level);
}

/* Close the open row. */
static inline void level_close(level_t *level) {
    int64_t row = level->count++;
    for (column_t *each = level->first_variable; each != NULL; each = each->next_variable)
        each->ends[row + 1] = (int32_t)(each->layout == LIST ? each->items->count
                                                             : (int64_t)each->used);
}

/* How long the UTF-8 sequence at ``text`` is, of at most ``most`` bytes; 0 where there is none. */
size_t sequence(const uint8_t *text, size_t most);

/* Whether all bytes are UTF-8. */
int is_utf8(const uint8_t *text, size_t size);

#pragma GCC visibility pop

#endif
