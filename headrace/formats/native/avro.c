/* Avro values of a binary array into Arrow's buffers, by programs that headrace/formats/avro makes.

   A program resolves what one schema of a writer wrote to the columns of the reader. It is run
   twice: headrace_avro_check looks at each value whole and adds up sizes, and headrace_avro_fill
   writes those that passed into buffers of these sizes. The second run looks at the same bytes and
   trusts nothing that the first has not checked. The programs come from Python and are trusted. */

#include <stdint.h>
#include <string.h>

/* What an operation reads; as in program.py. */
enum kind {
  NOTHING,  /* null */
  INTEGER,  /* int or long from low to high, times scale */
  FLOAT,
  DOUBLE,
  BOOLEAN,
  BYTES,    /* after their length; low: 1 for text */
  FIXED,    /* low bytes */
  DECIMAL,  /* scale bytes, -1: after their length; low and high: the halves of its limit */
  SYMBOL,   /* one of low symbols, whose places and lengths are at `constant` */
  RECORD,   /* the operations in it follow each other */
  LIST,     /* items by the operation after it */
  MAP,      /* keys, and values by the operation after it */
  UNION,    /* one of the operations in it, of which there are low */
  REFUSED,  /* a branch that the reader has no type for */
  CONSTANT, /* the operation after it reads low bytes that are at `constant` */
};

/* How a column keeps a value. */
enum shape { NONE, BITS, INT32, INT64, FLOAT32, FLOAT64, WIDE, TEXT, ITEMS, STRUCT };

/* The outcome for a value. */
enum status {
  FILLED,
  TOMBSTONE,
  NO_FRAME,
  NO_PROGRAM,
  CUT,
  LEFT_OVER,
  NO_TEXT,
  NO_BRANCH,
  OUT_OF_RANGE,
  NO_SYMBOL,
};

/* Without a branch for null, which is 0 or 1 where there is one. */
enum { NEVER = 2 };

typedef struct {
  uint8_t kind, null_at;
  int16_t unused;
  int32_t column; /* -1: skipped */
  int32_t span;   /* of this and those in it */
  int32_t constant;
  int64_t low, high, scale;
} op_t;

typedef struct {
  int64_t id; /* of the writer's schema */
  const op_t *ops;
  int64_t count; /* 0: its values are bad */
  const uint8_t *constants;
} program_t;

typedef struct {
  const uint8_t *valid;
  const void *offsets;
  const uint8_t *data;
  int64_t first, count, is_large;
} values_t;

typedef struct {
  int64_t place, id;
  int32_t status, op;
  int64_t byte;
} bad_t;

typedef struct {
  uint8_t *values;
  int32_t *offsets;
  uint8_t *valid;     /* all set to begin with; NULL: without nulls of its own */
  int64_t rows, used; /* so far; used: characters or items */
  int32_t shape, span;
} column_t;

static inline int64_t offset_of(const values_t *in, int64_t place) {
  int64_t row = in->first + place;
  return in->is_large ? ((const int64_t *)in->offsets)[row] : ((const int32_t *)in->offsets)[row];
}

static inline int is_null(const values_t *in, int64_t place) {
  int64_t row = in->first + place;
  return in->valid != NULL && !(in->valid[row >> 3] >> (row & 7) & 1);
}

/* Confluent's frame: a zero, and the id of the writer's schema in four bytes. */
enum { FRAME = 5 };

static inline int64_t id_of(const uint8_t *p) {
  return (int64_t)p[1] << 24 | (int64_t)p[2] << 16 | (int64_t)p[3] << 8 | p[4];
}

static inline int64_t unzigzag(uint64_t v) { return (int64_t)(v >> 1) ^ -(int64_t)(v & 1); }

/* Reads a number of at most 64 bits, else returns NULL. */
static const uint8_t *long_number(const uint8_t *p, const uint8_t *end, int64_t *out) {
  uint64_t v = 0;
  for (int shift = 0; p < end && shift < 64; shift += 7) {
    uint64_t b = *p++;
    if (shift == 63 && b > 1) return NULL;
    v |= (b & 127) << shift;
    if (b < 128) {
      *out = unzigzag(v);
      return p;
    }
  }
  return NULL;
}

static inline const uint8_t *number(const uint8_t *p, const uint8_t *end, int64_t *out) {
  if (p < end && *p < 128) {
    *out = unzigzag(*p);
    return p + 1;
  }
  return long_number(p, end, out);
}

/* The same of a number that has been checked. */
static inline const uint8_t *checked_number(const uint8_t *p, int64_t *out) {
  uint64_t b = *p++, v = b & 127;
  for (int shift = 7; b > 127; shift += 7) {
    b = *p++;
    v |= (b & 127) << shift;
  }
  *out = unzigzag(v);
  return p;
}

static inline uint64_t word_at(const uint8_t *p) {
  uint64_t word;
  memcpy(&word, p, 8);
  return word;
}

static int is_text_slowly(const uint8_t *s, const uint8_t *end) {
  while (s < end) {
    uint32_t c = *s;
    if (c < 0x80) {
      s++;
      continue;
    }
    int more = c >= 0xf0 ? 3 : c >= 0xe0 ? 2 : 1;
    if (c < 0xc2 || c > 0xf4 || end - s <= more) return 0;
    uint32_t v = c & (0x3fu >> more);
    for (int i = 1; i <= more; i++) {
      if ((s[i] & 0xc0) != 0x80) return 0;
      v = v << 6 | (s[i] & 0x3f);
    }
    if (more == 2 && (v < 0x800 || (v >= 0xd800 && v < 0xe000))) return 0;
    if (more == 3 && (v < 0x10000 || v > 0x10ffff)) return 0;
    s += more + 1;
  }
  return 1;
}

static inline int is_text(const uint8_t *s, int64_t n) {
  const uint64_t high = 0x8080808080808080ull;
  const uint8_t *p = s, *end = s + n;
  if (n >= 8) {
    uint64_t seen = word_at(end - 8);
    for (; end - p >= 32; p += 32)
      seen |= word_at(p) | word_at(p + 8) | word_at(p + 16) | word_at(p + 24);
    for (; end - p >= 8; p += 8) seen |= word_at(p);
    return !(seen & high) || is_text_slowly(s, end);
  }
  uint8_t seen = 0;
  while (p < end) seen |= *p++;
  return seen < 0x80 || is_text_slowly(s, end);
}

/* What is known while values are checked, and of a failure when it is known. */
typedef struct {
  int64_t *sizes; /* characters or items of each column */
  const uint8_t *constants;
  const op_t *op;
  const uint8_t *at;
  int status;
} check_t;

static const uint8_t *failed(check_t *c, const op_t *op, const uint8_t *at, int status) {
  c->op = op;
  c->at = at;
  c->status = status;
  return NULL;
}

/* How a number failed: it is too long, or the value ends in it. */
static int of_number(const uint8_t *p, const uint8_t *end) {
  return end - p >= 10 ? OUT_OF_RANGE : CUT;
}

static unsigned __int128 joined(int64_t high, int64_t low) {
  return (unsigned __int128)(uint64_t)high << 64 | (uint64_t)low;
}

/* Reads a whole number of two's complement, highest byte first; returns whether it has 128 bits. */
static int wide(const uint8_t *s, int64_t n, unsigned __int128 *out) {
  uint8_t sign = n > 0 && s[0] & 0x80 ? 0xff : 0;
  unsigned __int128 v = sign ? ~(unsigned __int128)0 : 0;
  for (; n > 16; n--)
    if (*s++ != sign) return 0;
  if (n == 16 && ((s[0] ^ sign) & 0x80)) return 0;
  for (; n > 0; n--) v = v << 8 | *s++;
  *out = v;
  return 1;
}

static int has_digits(unsigned __int128 v, const op_t *op) {
  unsigned __int128 size = v >> 127 ? -v : v;
  return size < joined(op->high, op->low);
}

static const uint8_t *check(check_t *c, const op_t *op, const op_t *stop, const uint8_t *p,
                            const uint8_t *end);

/* Checks the blocks of items of a list or a map, each after their number, up to an empty one.
 * Blocks that say how many bytes they have are passed by where no column has their items. */
static const uint8_t *check_items(check_t *c, const op_t *op, const uint8_t *p,
                                  const uint8_t *end) {
  for (;;) {
    int64_t count, size;
    const uint8_t *at = p;
    if (!(p = number(at, end, &count))) return failed(c, op, at, of_number(at, end));
    if (count == 0) return p;
    if (count < 0) {
      if (count == INT64_MIN) return failed(c, op, at, OUT_OF_RANGE);
      count = -count;
      const uint8_t *before = p;
      if (!(p = number(before, end, &size))) return failed(c, op, before, of_number(before, end));
      if (op->column < 0) {
        if (size < 0 || size > end - p) return failed(c, op, before, CUT);
        p += size;
        continue;
      }
    }
    /* no item is without a byte */
    if (count > end - p) return failed(c, op, at, CUT);
    if (op->column >= 0) c->sizes[op->column] += count;
    for (; count > 0; count--) {
      if (op->kind == MAP) {
        at = p;
        if (!(p = number(at, end, &size))) return failed(c, op, at, of_number(at, end));
        if (size < 0 || size > end - p) return failed(c, op, at, CUT);
        if (op->column >= 0 && !is_text(p, size)) return failed(c, op, p, NO_TEXT);
        p += size;
        if (op->column >= 0) c->sizes[op->column + 1] += size;
      }
      if (!(p = check(c, op + 1, op + op->span, p, end))) return NULL;
    }
  }
}

static const op_t *branch_of(const op_t *op, int64_t branch) {
  for (op++; branch > 0; branch--) op += op->span;
  return op;
}

static const uint8_t *check(check_t *c, const op_t *op, const op_t *stop, const uint8_t *p,
                            const uint8_t *end) {
  while (op < stop) {
    const uint8_t *at = p;
    int64_t v;
    if (op->null_at != NEVER) {
      if (!(p = number(at, end, &v))) return failed(c, op, at, of_number(at, end));
      if (v == op->null_at) {
        op += op->span;
        continue;
      }
      if (v != 1 - op->null_at) return failed(c, op, at, NO_BRANCH);
      at = p;
    }
    switch (op->kind) {
      case NOTHING:
        break;
      case INTEGER:
        if (!(p = number(at, end, &v))) return failed(c, op, at, of_number(at, end));
        if (v < op->low || v > op->high) return failed(c, op, at, OUT_OF_RANGE);
        break;
      case FLOAT:
        if (end - p < 4) return failed(c, op, at, CUT);
        p += 4;
        break;
      case DOUBLE:
        if (end - p < 8) return failed(c, op, at, CUT);
        p += 8;
        break;
      case BOOLEAN:
        if (p == end) return failed(c, op, at, CUT);
        if (*p++ > 1) return failed(c, op, at, OUT_OF_RANGE);
        break;
      case BYTES:
        if (!(p = number(at, end, &v))) return failed(c, op, at, of_number(at, end));
        if (v < 0 || v > end - p) return failed(c, op, at, CUT);
        if (op->low && !is_text(p, v)) return failed(c, op, p, NO_TEXT);
        p += v;
        if (op->column >= 0) c->sizes[op->column] += v;
        break;
      case FIXED:
        if (end - p < op->low) return failed(c, op, at, CUT);
        p += op->low;
        if (op->column >= 0) c->sizes[op->column] += op->low;
        break;
      case DECIMAL: {
        unsigned __int128 whole;
        v = op->scale;
        if (v < 0 && !(p = number(at, end, &v))) return failed(c, op, at, of_number(at, end));
        if (v < 0 || v > end - p) return failed(c, op, at, CUT);
        if (!wide(p, v, &whole) || !has_digits(whole, op)) return failed(c, op, at, OUT_OF_RANGE);
        p += v;
        break;
      }
      case SYMBOL:
        if (!(p = number(at, end, &v))) return failed(c, op, at, of_number(at, end));
        if (v < 0 || v >= op->low) return failed(c, op, at, OUT_OF_RANGE);
        int32_t place[2];
        memcpy(place, c->constants + op->constant + 8 * v, 8);
        if (place[1] < 0) return failed(c, op, at, NO_SYMBOL);
        c->sizes[op->column] += place[1];
        break;
      case RECORD:
        break;
      case LIST:
      case MAP:
        if (!(p = check_items(c, op, p, end))) return NULL;
        op += op->span;
        continue;
      case UNION:
        if (!(p = number(at, end, &v))) return failed(c, op, at, of_number(at, end));
        if (v < 0 || v >= op->low) return failed(c, op, at, NO_BRANCH);
        const op_t *branch = branch_of(op, v);
        if (!(p = check(c, branch, branch + branch->span, p, end))) return NULL;
        op += op->span;
        continue;
      case CONSTANT: {
        const uint8_t *constant = c->constants + op->constant;
        if (!check(c, op + 1, op + op->span, constant, constant + op->low)) return NULL;
        op += op->span;
        continue;
      }
      default:
        return failed(c, op, at, NO_BRANCH);
    }
    op++;
  }
  return p;
}

static const program_t *program_of(const program_t *programs, int64_t count, int64_t id) {
  for (int64_t i = 0; i < count; i++)
    if (programs[i].id == id) return programs + i;
  return NULL;
}

/* Writes the ids that values have, each once, and returns how many there are: `room` at most. */
int64_t headrace_avro_ids(const values_t *in, int64_t *ids, int64_t room) {
  int64_t found = 0, last = -1;
  for (int64_t i = 0; i < in->count && found < room; i++) {
    if (is_null(in, i)) continue;
    const uint8_t *p = in->data + offset_of(in, i);
    if (offset_of(in, i + 1) - offset_of(in, i) < FRAME || p[0] != 0) continue;
    int64_t id = id_of(p), k = 0;
    if (id == last) continue;
    while (k < found && ids[k] != id) k++;
    if (k == found) ids[found++] = id;
    last = id;
  }
  return found;
}

/* Checks values; writes the status of each, and of those that are bad where and why. Adds up
   sizes, which are too large by what bad values have. Returns how many are bad. */
int64_t headrace_avro_check(const values_t *in, const program_t *programs, int64_t count,
                            uint8_t *status, bad_t *bad, int64_t *sizes, int64_t *tombstones) {
  int64_t bads = 0, nulls = 0;
  const program_t *program = NULL;
  check_t c = {.sizes = sizes};
  for (int64_t i = 0; i < in->count; i++) {
    if (is_null(in, i)) {
      status[i] = TOMBSTONE;
      nulls++;
      continue;
    }
    const uint8_t *start = in->data + offset_of(in, i), *end = in->data + offset_of(in, i + 1);
    const uint8_t *p = start;
    int64_t id = -1;
    c.op = NULL;
    c.at = p;
    if (end - p < FRAME || p[0] != 0) {
      c.status = NO_FRAME;
    } else {
      id = id_of(p);
      if (program == NULL || program->id != id) program = program_of(programs, count, id);
      c.status = NO_PROGRAM;
      if (program != NULL && program->count > 0) {
        c.constants = program->constants;
        c.status = FILLED;
        p = check(&c, program->ops, program->ops + program->count, p + FRAME, end);
        if (p != NULL && p != end) failed(&c, NULL, p, LEFT_OVER);
      }
    }
    status[i] = (uint8_t)c.status;
    if (c.status != FILLED) {
      int32_t op = c.op == NULL ? -1 : (int32_t)(c.op - program->ops);
      int is_inside = c.at >= start && c.at <= end; /* and not in a constant */
      bad[bads++] = (bad_t){i, id, c.status, op, is_inside ? c.at - start : -1};
    }
  }
  *tombstones = nulls;
  return bads;
}

static inline void copy(uint8_t *to, const uint8_t *from, int64_t n) {
  if (n > 128) {
    memcpy(to, from, (size_t)n);
  } else if (n >= 16) {
    for (int64_t i = 0; i + 16 <= n; i += 16) memcpy(to + i, from + i, 16);
    memcpy(to + n - 16, from + n - 16, 16);
  } else if (n >= 8) {
    memcpy(to, from, 8);
    memcpy(to + n - 8, from + n - 8, 8);
  } else if (n >= 4) {
    memcpy(to, from, 4);
    memcpy(to + n - 4, from + n - 4, 4);
  } else {
    for (int64_t i = 0; i < n; i++) to[i] = from[i];
  }
}

static inline void add_text(column_t *c, const uint8_t *from, int64_t n) {
  copy(c->values + c->used, from, n);
  c->used += n;
  c->offsets[++c->rows] = (int32_t)c->used;
}

/* Adds a null, also to the columns of a struct. */
static void pad(column_t *c) {
  int64_t row = c->rows++;
  if (c->valid != NULL) c->valid[row >> 3] &= (uint8_t)~(1u << (row & 7));
  switch (c->shape) {
    case INT32:
    case FLOAT32:
      memset(c->values + 4 * row, 0, 4);
      break;
    case INT64:
    case FLOAT64:
      memset(c->values + 8 * row, 0, 8);
      break;
    case WIDE:
      memset(c->values + 16 * row, 0, 16);
      break;
    case TEXT:
    case ITEMS:
      c->offsets[row + 1] = (int32_t)c->used;
      break;
    case STRUCT:
      for (int32_t i = 1; i < c->span; i += c[i].span) pad(c + i);
      break;
    default: /* bits are not set to begin with */
      break;
  }
}

static inline void add_integer(column_t *c, int64_t v) {
  int64_t row = c->rows++;
  switch (c->shape) {
    case INT64:
      ((int64_t *)c->values)[row] = v;
      break;
    case INT32:
      ((int32_t *)c->values)[row] = (int32_t)v;
      break;
    case FLOAT64:
      ((double *)c->values)[row] = (double)v;
      break;
    default:
      ((float *)c->values)[row] = (float)v;
      break;
  }
}

static inline uint32_t word32_at(const uint8_t *p) {
  return (uint32_t)p[3] << 24 | (uint32_t)p[2] << 16 | (uint32_t)p[1] << 8 | p[0];
}

static float float_at(const uint8_t *p) {
  uint32_t bits = word32_at(p);
  float v;
  memcpy(&v, &bits, 4);
  return v;
}

static double double_at(const uint8_t *p) {
  uint64_t bits = (uint64_t)word32_at(p + 4) << 32 | word32_at(p);
  double v;
  memcpy(&v, &bits, 8);
  return v;
}

static const uint8_t *fill(column_t *columns, const uint8_t *constants, const op_t *op,
                           const op_t *stop, const uint8_t *p);

static const uint8_t *fill_items(column_t *columns, const uint8_t *constants, const op_t *op,
                                 const uint8_t *p) {
  column_t *list = op->column < 0 ? NULL : columns + op->column;
  for (;;) {
    int64_t count, size;
    p = checked_number(p, &count);
    if (count == 0) break;
    if (count < 0) {
      count = -count;
      p = checked_number(p, &size);
      if (list == NULL) {
        p += size;
        continue;
      }
    }
    if (list != NULL) list->used += count;
    for (; count > 0; count--) {
      if (op->kind == MAP) {
        p = checked_number(p, &size);
        if (list != NULL) add_text(list + 1, p, size);
        p += size;
      }
      p = fill(columns, constants, op + 1, op + op->span, p);
    }
  }
  if (list != NULL) list->offsets[++list->rows] = (int32_t)list->used;
  return p;
}

static const uint8_t *fill(column_t *columns, const uint8_t *constants, const op_t *op,
                           const op_t *stop, const uint8_t *p) {
  while (op < stop) {
    column_t *c = op->column < 0 ? NULL : columns + op->column;
    int64_t v;
    if (op->null_at != NEVER) {
      p = checked_number(p, &v);
      if (v == op->null_at) {
        if (c != NULL) pad(c);
        op += op->span;
        continue;
      }
    }
    switch (op->kind) {
      case NOTHING:
        if (c != NULL) pad(c);
        break;
      case INTEGER:
        p = checked_number(p, &v);
        if (c != NULL) add_integer(c, v * op->scale);
        break;
      case FLOAT:
        if (c != NULL && c->shape == FLOAT32) ((float *)c->values)[c->rows++] = float_at(p);
        if (c != NULL && c->shape == FLOAT64) ((double *)c->values)[c->rows++] = float_at(p);
        p += 4;
        break;
      case DOUBLE:
        if (c != NULL) ((double *)c->values)[c->rows++] = double_at(p);
        p += 8;
        break;
      case BOOLEAN:
        if (c != NULL) {
          c->values[c->rows >> 3] |= (uint8_t)(*p << (c->rows & 7));
          c->rows++;
        }
        p++;
        break;
      case BYTES:
        p = checked_number(p, &v);
        if (c != NULL) add_text(c, p, v);
        p += v;
        break;
      case FIXED:
        if (c != NULL) add_text(c, p, op->low);
        p += op->low;
        break;
      case DECIMAL: {
        unsigned __int128 whole = 0;
        v = op->scale;
        if (v < 0) p = checked_number(p, &v);
        wide(p, v, &whole);
        if (c != NULL) memcpy(c->values + 16 * c->rows++, &whole, 16);
        p += v;
        break;
      }
      case SYMBOL: {
        int32_t place[2];
        p = checked_number(p, &v);
        memcpy(place, constants + op->constant + 8 * v, 8);
        add_text(c, constants + place[0], place[1]);
        break;
      }
      case RECORD:
        if (c != NULL) c->rows++;
        break;
      case LIST:
      case MAP:
        p = fill_items(columns, constants, op, p);
        op += op->span;
        continue;
      case UNION: {
        p = checked_number(p, &v);
        const op_t *branch = branch_of(op, v);
        p = fill(columns, constants, branch, branch + branch->span, p);
        op += op->span;
        continue;
      }
      default: /* CONSTANT: what is refused did not pass */
        fill(columns, constants, op + 1, op + op->span, constants + op->constant);
        op += op->span;
        continue;
    }
    op++;
  }
  return p;
}

/* Fills a row for each value that headrace_avro_check gave a status: null for what is bad. The
   buffers have the sizes that it found; the first column is the row itself. */
void headrace_avro_fill(const values_t *in, const program_t *programs, int64_t count,
                        const uint8_t *status, column_t *columns) {
  const program_t *program = NULL;
  for (int64_t i = 0; i < in->count; i++) {
    if (status[i] != FILLED) {
      pad(columns);
      continue;
    }
    const uint8_t *p = in->data + offset_of(in, i);
    int64_t id = id_of(p);
    if (program == NULL || program->id != id) program = program_of(programs, count, id);
    fill(columns, program->constants, program->ops, program->ops + program->count, p + FRAME);
  }
}
