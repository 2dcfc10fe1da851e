/* JSON to columns: each value is one object, whose fields that a schema names become a row.
 *
 * A value is read once, from left to right. What does not fit undoes its row; nothing of it stays.
 * Members that the schema does not name are looked at as JSON and nothing else. It takes and
 * refuses what Arrow's reader of JSON does, whose rows are the same, where there is no compiler.
 */
#define _GNU_SOURCE
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#ifdef __APPLE__
#include <xlocale.h>
#endif
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "columns.h"

/* How a TIMESTAMP is written: as text, or as a number of a unit, with so many digits after its
 * point that are microseconds. */
enum { ISO = -1 };

/* Times of the years from 1 to 9999, in days and in microseconds since 1970. */
#define FIRST_DAY (-719162)
#define LAST_DAY 2932896
#define DAY 86400000000LL
#define FIRST_TIME (FIRST_DAY * DAY)
#define LAST_TIME ((LAST_DAY + 1) * DAY - 1)

typedef __int128 whole_t;
typedef unsigned __int128 bits_t;

typedef struct reader reader_t;
typedef struct field field_t;

/* Read one value, at ``reader->at``, into the open row. Returns whether it fits. */
typedef int (*read_t)(reader_t *reader, const field_t *field);

/* Members are mostly in the order in which they were in the object before. */
#define GUESSES 64
#define MOST_OF_NAME 32

typedef struct {
    char name[MOST_OF_NAME]; /* padded with zeros */
    uint8_t size;            /* 0: none */
    int32_t number;          /* the field's, or -1 */
} guess_t;

/* What a column is read by. */
struct field {
    column_t *column;
    read_t read;
    int32_t first, count; /* its children, and how many they are */
    int32_t *table;       /* numbers of children by the hash of their names, -1: none */
    uint32_t mask;
    guess_t *guesses;
};

struct reader {
    const uint8_t *at, *end; /* of the value */
    const uint8_t *limit;    /* of all values: what is before can be looked at */
    field_t *fields;
    uint64_t *seen; /* by field: the last object that had it */
    uint64_t objects;
    int unit;
    char *scratch;
    size_t scratch_size;
    uint64_t *nesting; /* bits: which of the containers around are objects */
    size_t nesting_size;
    locale_t plain;
};

static inline int fits_not(reader_t *reader, const uint8_t *at) {
    reader->at = at;
    return 0;
}

static void *grown(void *start, size_t *size, size_t wanted) {
    if (*size >= wanted)
        return start;
    *size = 2 * wanted;
    void *found = realloc(start, *size);
    if (found == NULL)
        abort();
    return found;
}

static inline void skip_blank(reader_t *reader) {
    const uint8_t *at = reader->at;
    while (at < reader->end && (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t'))
        at++;
    reader->at = at;
}

static inline int took(reader_t *reader, uint8_t sign) {
    if (reader->at < reader->end && *reader->at == sign) {
        reader->at++;
        return 1;
    }
    return 0;
}

/* --- text ------------------------------------------------------------------------------------- */

/* A text between its quotes, and whether it has escapes, and bytes that are no ASCII. */
typedef struct {
    const uint8_t *start;
    size_t size;
    int has_escapes, is_wide;
} text_t;

static inline int32_t hex_of(const uint8_t *at) {
    int32_t found = 0;
    for (int digit = 0; digit < 4; digit++) {
        uint8_t sign = at[digit], lower = sign | 0x20;
        if (sign >= '0' && sign <= '9')
            found = found << 4 | (sign - '0');
        else if (lower >= 'a' && lower <= 'f')
            found = found << 4 | (lower - 'a' + 10);
        else
            return -1;
    }
    return found;
}

/* Return what is after the escape at ``at``; NULL where it is none. */
static const uint8_t *after_escape(const uint8_t *at, const uint8_t *end) {
    if (end - at < 2)
        return NULL;
    if (at[1] != 'u')
        return strchr("\"\\/bfnrt", at[1]) != NULL && at[1] != 0 ? at + 2 : NULL;
    int32_t code = end - at < 6 ? -1 : hex_of(at + 2);
    if (code < 0 || code >> 10 == 0x37)
        return NULL;
    if (code >> 10 != 0x36)
        return at + 6;
    int is_pair = end - at >= 12 && at[6] == '\\' && at[7] == 'u' && hex_of(at + 8) >> 10 == 0x37;
    return is_pair ? at + 12 : NULL;
}

/* Pass what is text and nothing else; note whether there are bytes that are no ASCII. */
static inline const uint8_t *pass_plain(const uint8_t *at, const uint8_t *end,
                                        const uint8_t *limit, int *is_wide) {
#ifdef __SSE2__
    const __m128i quote = _mm_set1_epi8('"'), slash = _mm_set1_epi8('\\');
    const __m128i control = _mm_set1_epi8(0x1f);
    while (limit - at >= 16) {
        __m128i found = _mm_loadu_si128((const __m128i *)(const void *)at);
        __m128i stops = _mm_or_si128(
            _mm_or_si128(_mm_cmpeq_epi8(found, quote), _mm_cmpeq_epi8(found, slash)),
            _mm_cmpeq_epi8(_mm_max_epu8(found, control), control));
        uint32_t stop = (uint32_t)_mm_movemask_epi8(stops);
        uint32_t wide = (uint32_t)_mm_movemask_epi8(found);
        if (stop != 0) {
            int place = __builtin_ctz(stop);
            *is_wide |= (wide & ((1u << place) - 1)) != 0;
            at += place;
            return at < end ? at : end;
        }
        *is_wide |= wide != 0;
        at += 16;
        if (at >= end)
            return end;
    }
#else
    (void)limit;
    const uint64_t ones = 0x0101010101010101u, highs = 0x8080808080808080u;
    while (end - at >= 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        uint64_t quotes = word ^ ones * '"', slashes = word ^ ones * '\\';
        uint64_t stops = ((quotes - ones) & ~quotes) | ((slashes - ones) & ~slashes) |
                         ((word - ones * 0x20) & ~word);
        if (stops & highs)
            break;
        *is_wide |= (word & highs) != 0;
        at += 8;
    }
#endif
    for (; at < end && *at != '"' && *at != '\\' && *at >= 0x20; at++)
        *is_wide |= *at >> 7;
    return at;
}

/* Read the text whose quote was passed. Returns whether it is one. */
static inline int read_text(reader_t *reader, text_t *text) {
    const uint8_t *at = reader->at;
    *text = (text_t){.start = at};
    for (;;) {
        at = pass_plain(at, reader->end, reader->limit, &text->is_wide);
        if (at == reader->end)
            return fits_not(reader, at);
        if (*at == '"')
            break;
        if (*at != '\\')
            return fits_not(reader, at);
        const uint8_t *after = after_escape(at, reader->end);
        if (after == NULL)
            return fits_not(reader, at);
        text->has_escapes = 1;
        at = after;
    }
    text->size = (size_t)(at - text->start);
    reader->at = at + 1;
    return 1;
}

static char *put_code(char *to, uint32_t code) {
    if (code < 0x80) {
        *to++ = (char)code;
    } else if (code < 0x800) {
        *to++ = (char)(0xc0 | code >> 6);
        *to++ = (char)(0x80 | (code & 0x3f));
    } else if (code < 0x10000) {
        *to++ = (char)(0xe0 | code >> 12);
        *to++ = (char)(0x80 | (code >> 6 & 0x3f));
        *to++ = (char)(0x80 | (code & 0x3f));
    } else {
        *to++ = (char)(0xf0 | code >> 18);
        *to++ = (char)(0x80 | (code >> 12 & 0x3f));
        *to++ = (char)(0x80 | (code >> 6 & 0x3f));
        *to++ = (char)(0x80 | (code & 0x3f));
    }
    return to;
}

/* Write a text that was read without its escapes, into at most as many bytes; return how many. */
static size_t unescaped(const text_t *text, char *into) {
    const uint8_t *at = text->start, *end = at + text->size;
    char *to = into;
    while (at < end) {
        const uint8_t *slash = memchr(at, '\\', (size_t)(end - at));
        size_t plain = (size_t)((slash == NULL ? end : slash) - at);
        memcpy(to, at, plain);
        to += plain;
        if (slash == NULL)
            break;
        at = slash + 2;
        switch (slash[1]) {
        case 'b': *to++ = '\b'; break;
        case 'f': *to++ = '\f'; break;
        case 'n': *to++ = '\n'; break;
        case 'r': *to++ = '\r'; break;
        case 't': *to++ = '\t'; break;
        case 'u': {
            uint32_t code = (uint32_t)hex_of(at);
            at += 4;
            if (code >> 10 == 0x36) {
                code = 0x10000 + ((code & 0x3ff) << 10) + ((uint32_t)hex_of(at + 2) & 0x3ff);
                at += 6;
            }
            to = put_code(to, code);
            break;
        }
        default: *to++ = (char)slash[1];
        }
    }
    return (size_t)(to - into);
}

/* Have a text without its escapes: as it is, or in the reader's own memory. */
static inline void have_plain(reader_t *reader, text_t *text) {
    if (!text->has_escapes)
        return;
    reader->scratch = grown(reader->scratch, &reader->scratch_size, text->size);
    text->size = unescaped(text, reader->scratch);
    text->start = (const uint8_t *)reader->scratch;
    text->has_escapes = 0;
}

/* --- numbers ---------------------------------------------------------------------------------- */

/* A number as it is written: its digits as one whole number, as far as they fit into one. */
typedef struct {
    const uint8_t *start;
    size_t size;
    uint64_t digits;
    int32_t fraction; /* digits after the point that did */
    int32_t exponent;
    int is_negative, is_long, is_special;
} number_t;

/* The largest exponent that Arrow's reader takes: 308, and one more for each digit after the point
 * that it looks at. */
static int32_t most_exponent(const uint8_t *at, int32_t whole, const uint8_t *point, int32_t count) {
    uint64_t value = 0;
    int32_t looked = 0, significant = whole - 1;
    int is_long = 0;
    for (int32_t digit = 0; digit < whole && !is_long; digit++) {
        is_long = value > (UINT64_MAX - (at[digit] - '0')) / 10;
        value = value * 10 + (uint64_t)(at[digit] - '0');
    }
    for (; !is_long && looked < count && value < 1ull << 53; looked++) {
        value = value * 10 + (uint64_t)(point[1 + looked] - '0');
        significant += value != 0;
    }
    int is_some = is_long || value != 0;
    int32_t digit = looked;
    for (; digit < count && significant < 17; digit++, looked++) {
        is_some |= point[1 + digit] != '0';
        significant += is_some;
    }
    return 308 + looked;
}

static inline uint64_t whole_tens(int32_t exponent) {
    static const uint64_t tens[] = {1u,
                                    10u,
                                    100u,
                                    1000u,
                                    10000u,
                                    100000u,
                                    1000000u,
                                    10000000u,
                                    100000000u,
                                    1000000000u,
                                    10000000000u,
                                    100000000000u,
                                    1000000000000u,
                                    10000000000000u,
                                    100000000000000u,
                                    1000000000000000u,
                                    10000000000000000u,
                                    100000000000000000u,
                                    1000000000000000000u,
                                    10000000000000000000u};
    return tens[exponent];
}

static inline int is_digit(const uint8_t *at, const uint8_t *end) {
    return at < end && (uint8_t)(*at - '0') < 10;
}

static int read_special(reader_t *reader, number_t *number, const uint8_t *at) {
    static const char *const names[] = {"Infinity", "NaN", "Inf"};
    for (int each = 0; each < 3; each++) {
        size_t size = strlen(names[each]);
        if ((size_t)(reader->end - at) >= size && memcmp(at, names[each], size) == 0) {
            number->is_special = each == 1 ? 'N' : 'I';
            number->size = (size_t)(at + size - number->start);
            reader->at = at + size;
            return 1;
        }
    }
    return fits_not(reader, at);
}

/* Read a number, at whose first sign the reader is. Returns whether it is one. */
static inline int read_number(reader_t *reader, number_t *number) {
    const uint8_t *at = reader->at, *end = reader->end;
    *number = (number_t){.start = at};
    if (at < end && *at == '-') {
        number->is_negative = 1;
        at++;
    }
    const uint8_t *first = at, *point = NULL;
    if (!is_digit(at, end))
        return read_special(reader, number, at);
    uint64_t digits = 0;
    if (*at == '0') {
        at++;
    } else {
        for (; is_digit(at, end); at++) {
            if (at - first < 19)
                digits = digits * 10 + (uint64_t)(*at - '0');
            else
                number->is_long = 1;
        }
    }
    int32_t whole = (int32_t)(at - first), fraction = 0;
    if (at < end && *at == '.') {
        point = at++;
        if (!is_digit(at, end))
            return fits_not(reader, at);
        for (; is_digit(at, end); at++) {
            if (digits < 1000000000000000000u && !number->is_long) {
                digits = digits * 10 + (uint64_t)(*at - '0');
                number->fraction++;
            } else {
                number->is_long = 1;
            }
        }
        fraction = (int32_t)(at - point - 1);
    }
    number->digits = digits;
    if (at < end && (*at | 0x20) == 'e') {
        int is_minus = 0;
        int32_t exponent = 0;
        at++;
        if (at < end && (*at == '+' || *at == '-'))
            is_minus = *at++ == '-';
        if (!is_digit(at, end))
            return fits_not(reader, at);
        for (; is_digit(at, end); at++)
            if (exponent < 100000000)
                exponent = exponent * 10 + (*at - '0');
        if (!is_minus && exponent > 308 && exponent > most_exponent(first, whole, point, fraction))
            return fits_not(reader, number->start);
        number->exponent = is_minus ? -exponent : exponent;
    }
    number->size = (size_t)(at - number->start);
    reader->at = at;
    return 1;
}

/* Return the number as the C library reads it, where it is not exact in fewer steps. */
static double slow_number(reader_t *reader, const number_t *number, int is_float) {
    reader->scratch = grown(reader->scratch, &reader->scratch_size, number->size + 1);
    memcpy(reader->scratch, number->start, number->size);
    reader->scratch[number->size] = 0;
    return is_float ? (double)strtof_l(reader->scratch, NULL, reader->plain)
                    : strtod_l(reader->scratch, NULL, reader->plain);
}

static double special_number(const number_t *number) {
    if (number->is_special == 'N')
        return (double)NAN;
    return number->is_negative ? -INFINITY : INFINITY;
}

static const double TENS[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                              1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                              1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

/* The largest power of ten of 64 bits. */
#define MOST_TENS 19

/* Have ``number`` as bits times two to the power of ``-shift``, of which so many are there that what
 * is cut off changes no rounding: it is in the last bit. Returns whether it can be had so. */
static inline int exact_bits(const number_t *number, int32_t exponent, bits_t *bits, int *shift) {
    *shift = 0;
    if (number->is_long || exponent < -MOST_TENS || exponent > MOST_TENS)
        return 0;
    if (exponent >= 0 || number->digits == 0) {
        *bits = (bits_t)number->digits * whole_tens(exponent < 0 ? 0 : exponent);
        return 1;
    }
    uint64_t tens = whole_tens(-exponent);
    *shift = __builtin_clzll(number->digits) + 63;
    bits_t shifted = (bits_t)number->digits << *shift;
    *bits = shifted / tens;
    *bits |= *bits * tens != shifted;
    return 1;
}

static inline double double_of(reader_t *reader, const number_t *number) {
    int32_t exponent = number->exponent - number->fraction;
    bits_t bits;
    int shift;
    double found;
    if (number->is_special)
        return special_number(number);
    if (!number->is_long && number->digits <= 1ull << 53 && exponent >= -22 && exponent <= 22) {
        /* both are exact, so that their product or quotient is rounded once */
        found = (double)number->digits;
        found = exponent < 0 ? found / TENS[-exponent] : found * TENS[exponent];
    } else if (exact_bits(number, exponent, &bits, &shift)) {
        found = ldexp((double)bits, -shift);
    } else {
        return slow_number(reader, number, 0);
    }
    return number->is_negative ? -found : found;
}

static inline float float_of(reader_t *reader, const number_t *number) {
    bits_t bits;
    int shift;
    if (number->is_special)
        return (float)special_number(number);
    if (!exact_bits(number, number->exponent - number->fraction, &bits, &shift))
        return (float)slow_number(reader, number, 1);
    float found = ldexpf((float)bits, -shift);
    return number->is_negative ? -found : found;
}

/* --- decimals --------------------------------------------------------------------------------- */

#define MOST_DIGITS 38

static inline whole_t power_of_ten(int32_t exponent) {
    int32_t rest = exponent > MOST_TENS ? exponent - MOST_TENS : 0;
    return (whole_t)whole_tens(exponent - rest) * whole_tens(rest);
}

/* Read a decimal of so many digits, ``scale`` of them after the point, of all the text; return
 * whether it is one without more digits. */
static int decimal_of(const uint8_t *at, size_t size, int32_t precision, int32_t scale,
                      whole_t *found) {
    const uint8_t *end = at + size;
    int is_negative = 0, has_digits = 0;
    int64_t digits = 0, fraction = 0;
    whole_t value = 0;
    if (at < end && (*at == '-' || *at == '+'))
        is_negative = *at++ == '-';
    for (int is_fraction = 0; at < end; at++) {
        if (*at == '.' && !is_fraction) {
            is_fraction = 1;
            continue;
        }
        if (!is_digit(at, end))
            break;
        has_digits = 1;
        /* zeros before all others do not count, but for those after the point */
        digits += is_fraction || *at != '0' || digits > 0;
        fraction += is_fraction;
        if (digits > MOST_DIGITS)
            return 0;
        value = value * 10 + (*at - '0');
    }
    if (!has_digits)
        return 0;
    if (at < end) {
        int is_minus = 0;
        int64_t exponent = 0;
        if ((*at++ | 0x20) != 'e')
            return 0;
        if (at < end && (*at == '+' || *at == '-'))
            is_minus = *at++ == '-';
        if (at == end)
            return 0;
        for (; at < end; at++) {
            if (!is_digit(at, end))
                return 0;
            if (exponent < 1000000)
                exponent = exponent * 10 + (*at - '0');
        }
        fraction -= is_minus ? -exponent : exponent;
    }
    if (value == 0 && fraction > scale)
        fraction = scale;
    if (fraction > MOST_DIGITS || -fraction > MOST_DIGITS)
        return 0;
    if (digits - (fraction < 0 ? fraction : 0) > precision)
        return 0;
    int32_t more = scale - (int32_t)fraction;
    if (more >= 0) {
        if (value >= power_of_ten(precision - more > 0 ? precision - more : 0) && value != 0)
            return 0;
        value = value == 0 ? 0 : value * power_of_ten(more);
    } else {
        whole_t unit = power_of_ten(-more);
        if (value % unit != 0)
            return 0;
        value /= unit;
    }
    if (value >= power_of_ten(precision))
        return 0;
    *found = is_negative ? -value : value;
    return 1;
}

/* --- times ------------------------------------------------------------------------------------ */

static inline int two_digits(const uint8_t *at) {
    uint8_t tens = (uint8_t)(at[0] - '0'), ones = (uint8_t)(at[1] - '0');
    return tens < 10 && ones < 10 ? tens * 10 + ones : -1;
}

/* Return the days from 1970 to a day of the form 2026-03-29, INT32_MIN where it is none. */
static int32_t day_of(const uint8_t *at) {
    static const uint8_t lengths[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    int century = two_digits(at), year = two_digits(at + 2);
    int month = two_digits(at + 5), day = two_digits(at + 8);
    if (century < 0 || year < 0 || at[4] != '-' || at[7] != '-' || month < 1 || month > 12 || day < 1)
        return INT32_MIN;
    year += century * 100;
    int is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    if (day > lengths[month - 1] + (month == 2 && is_leap))
        return INT32_MIN;
    /* years begin in March here, so that the day of a leap year is the last one */
    year -= month < 3;
    int era = (year < 0 ? year - 399 : year) / 400, of_era = year - era * 400;
    int of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
    return era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468;
}

/* Read a time of all the text, with an offset or without; return whether it is one. */
static int time_of(const uint8_t *at, size_t size, int may_have_offset, int64_t *found) {
    const uint8_t *end = at + size;
    if (size < 10)
        return 0;
    int32_t day = day_of(at);
    if (day == INT32_MIN)
        return 0;
    int64_t time = day * DAY;
    at += 10;
    if (at < end) {
        if ((*at != 'T' && *at != ' ') || end - at < 3)
            return 0;
        int hour = two_digits(at + 1), minute = 0, second = 0;
        int64_t micros = 0;
        at += 3;
        if (at < end && *at == ':') {
            if (end - at < 3)
                return 0;
            minute = two_digits(at + 1);
            at += 3;
            if (at < end && *at == ':') {
                if (end - at < 3)
                    return 0;
                second = two_digits(at + 1);
                at += 3;
                if (at < end && *at == '.') {
                    int64_t unit = 100000;
                    at++;
                    if (!is_digit(at, end))
                        return 0;
                    for (; is_digit(at, end); at++, unit /= 10) {
                        if (unit == 0)
                            return 0;
                        micros += unit * (*at - '0');
                    }
                }
            }
        }
        if (hour < 0 || hour > 23 || minute < 0 || minute > 59 || second < 0 || second > 59)
            return 0;
        time += ((hour * 60LL + minute) * 60 + second) * 1000000 + micros;
        if (at < end && !may_have_offset)
            return 0;
        if (at < end && *at == 'Z') {
            at++;
        } else if (at < end) {
            int is_minus = *at == '-', minutes = 0;
            if ((!is_minus && *at != '+') || end - at < 3)
                return 0;
            int hours = two_digits(at + 1);
            at += 3;
            if (at < end) {
                at += *at == ':';
                if (end - at < 2)
                    return 0;
                minutes = two_digits(at);
                at += 2;
            }
            if (hours < 0 || hours > 23 || minutes < 0 || minutes > 59)
                return 0;
            int64_t offset = (hours * 60LL + minutes) * 60000000;
            time -= is_minus ? -offset : offset;
        }
        if (at < end)
            return 0;
    }
    if (time < FIRST_TIME || time > LAST_TIME)
        return 0;
    *found = time;
    return 1;
}

/* --- what is not read ------------------------------------------------------------------------- */

static int pass_word(reader_t *reader, const char *word) {
    size_t size = strlen(word);
    if ((size_t)(reader->end - reader->at) < size || memcmp(reader->at, word, size) != 0)
        return 0;
    reader->at += size;
    return 1;
}

/* Pass a value that is neither an object nor a list. Returns whether it is one. */
static inline int pass_scalar(reader_t *reader) {
    text_t text;
    number_t number;
    switch (reader->at < reader->end ? *reader->at : 0) {
    case '"': reader->at++; return read_text(reader, &text);
    case 't': return pass_word(reader, "true");
    case 'f': return pass_word(reader, "false");
    case 'n': return pass_word(reader, "null");
    default: return read_number(reader, &number);
    }
}

/* Pass a member's name and its colon. Returns whether they are there. */
static inline int pass_name(reader_t *reader) {
    text_t text;
    if (!took(reader, '"') || !read_text(reader, &text))
        return 0;
    skip_blank(reader);
    return took(reader, ':');
}

/* Pass any value, however deep. Returns whether it is one. */
static int pass_value(reader_t *reader) {
    size_t depth = 0;
    for (;;) {
        skip_blank(reader);
        uint8_t sign = reader->at < reader->end ? *reader->at : 0;
        if (sign == '{' || sign == '[') {
            reader->at++;
            skip_blank(reader);
            if (!took(reader, sign == '{' ? '}' : ']')) {
                size_t had = reader->nesting_size;
                reader->nesting = grown(reader->nesting, &reader->nesting_size, depth / 64 * 8 + 8);
                if (reader->nesting_size > had)
                    memset((char *)reader->nesting + had, 0, reader->nesting_size - had);
                uint64_t bit = 1ull << depth % 64;
                reader->nesting[depth / 64] &= ~bit;
                reader->nesting[depth / 64] |= sign == '{' ? bit : 0;
                depth++;
                if (sign == '{' && !pass_name(reader))
                    return 0;
                continue;
            }
        } else if (!pass_scalar(reader)) {
            return 0;
        }
        for (;;) {
            if (depth == 0)
                return 1;
            skip_blank(reader);
            int is_object = reader->nesting[(depth - 1) / 64] >> (depth - 1) % 64 & 1;
            if (took(reader, ',')) {
                skip_blank(reader);
                if (is_object && !pass_name(reader))
                    return 0;
                break;
            }
            if (!took(reader, is_object ? '}' : ']'))
                return 0;
            depth--;
        }
    }
}

/* --- fields ----------------------------------------------------------------------------------- */

static int read_bool(reader_t *reader, const field_t *field) {
    if (pass_word(reader, "true"))
        put_bit(field->column, 1);
    else if (pass_word(reader, "false"))
        put_bit(field->column, 0);
    else
        return 0;
    return 1;
}

static int read_whole(reader_t *reader, const field_t *field) {
    const uint8_t *start = reader->at, *at = start, *end = reader->end;
    column_t *column = field->column;
    int is_negative = at < end && *at == '-';
    uint64_t value = 0;
    at += is_negative;
    const uint8_t *first = at;
    for (; is_digit(at, end); at++) {
        if (at - first == 19)
            return 0;
        value = value * 10 + (uint64_t)(*at - '0');
    }
    if (at == first || (*first == '0' && at - first > 1))
        return 0;
    if (at < end && (*at == '.' || (*at | 0x20) == 'e'))
        return 0;
    uint64_t most = (1ull << (column->width * 8 - 1)) - !is_negative;
    if (value > most)
        return 0;
    int64_t found = is_negative ? (int64_t)(0 - value) : (int64_t)value;
    switch (column->width) {
    case 1: *(int8_t *)place_of(column) = (int8_t)found; break;
    case 2: *(int16_t *)place_of(column) = (int16_t)found; break;
    case 4: *(int32_t *)place_of(column) = (int32_t)found; break;
    default: *(int64_t *)place_of(column) = found;
    }
    fill(column);
    reader->at = at;
    return 1;
}

static int read_double(reader_t *reader, const field_t *field) {
    number_t number;
    if (!read_number(reader, &number))
        return 0;
    *(double *)place_of(field->column) = double_of(reader, &number);
    fill(field->column);
    return 1;
}

static int read_float(reader_t *reader, const field_t *field) {
    number_t number;
    if (!read_number(reader, &number))
        return 0;
    *(float *)place_of(field->column) = float_of(reader, &number);
    fill(field->column);
    return 1;
}

static int read_string(reader_t *reader, const field_t *field) {
    text_t text;
    column_t *column = field->column;
    if (!took(reader, '"') || !read_text(reader, &text))
        return 0;
    if (text.is_wide && !is_utf8(text.start, text.size))
        return fits_not(reader, text.start);
    if (text.has_escapes) {
        column->used += unescaped(&text, text_of(column, text.size));
        fill(column);
    } else {
        put_text(column, text.start, text.size);
    }
    return 1;
}

/* Read a text that stands for something else. Returns whether it is one. */
static inline int read_plain(reader_t *reader, text_t *text) {
    if (!took(reader, '"') || !read_text(reader, text))
        return 0;
    have_plain(reader, text);
    return 1;
}

static int read_day(reader_t *reader, const field_t *field) {
    const uint8_t *start = reader->at;
    text_t text;
    if (!read_plain(reader, &text))
        return 0;
    int32_t day = text.size == 10 ? day_of(text.start) : INT32_MIN;
    if (day < FIRST_DAY || day > LAST_DAY)
        return fits_not(reader, start);
    *(int32_t *)place_of(field->column) = day;
    fill(field->column);
    return 1;
}

static int read_time(reader_t *reader, const field_t *field) {
    const uint8_t *start = reader->at;
    text_t text;
    int64_t time;
    if (!read_plain(reader, &text))
        return 0;
    int is_moment = field->column->format[4] != 0;
    if (!time_of(text.start, text.size, is_moment, &time))
        return fits_not(reader, start);
    *(int64_t *)place_of(field->column) = time;
    fill(field->column);
    return 1;
}

/* Read a decimal that is a number, or what a text says. Returns whether it is one. */
static int read_digits(reader_t *reader, int32_t precision, int32_t scale, whole_t *found) {
    const uint8_t *start = reader->at;
    text_t text;
    number_t number;
    if (start < reader->end && *start == '"') {
        if (!read_plain(reader, &text))
            return 0;
    } else {
        if (!read_number(reader, &number))
            return 0;
        text = (text_t){.start = number.start, .size = number.size};
    }
    int fits = decimal_of(text.start, text.size, precision, scale, found);
    return fits ? 1 : fits_not(reader, start);
}

static int read_decimal(reader_t *reader, const field_t *field) {
    whole_t found;
    column_t *column = field->column;
    if (!read_digits(reader, column->precision, column->scale, &found))
        return 0;
    memcpy(place_of(column), &found, sizeof found);
    fill(column);
    return 1;
}

/* What a moment as a number is read as: seconds up to beyond the year 9999, with the fractions that
 * a double of such has. */
#define EPOCH_DIGITS 30
#define EPOCH_SCALE 12

static int read_epoch(reader_t *reader, const field_t *field) {
    const uint8_t *start = reader->at;
    whole_t found;
    if (!read_digits(reader, EPOCH_DIGITS, EPOCH_SCALE, &found))
        return 0;
    found /= power_of_ten(EPOCH_SCALE - reader->unit);
    if (found < FIRST_TIME || found > LAST_TIME)
        return fits_not(reader, start);
    *(int64_t *)place_of(field->column) = (int64_t)found;
    fill(field->column);
    return 1;
}

static int read_object(reader_t *reader, const field_t *field);

/* Read a value or null. Returns whether it fits. */
static inline int read_field(reader_t *reader, const field_t *field) {
    if (reader->at < reader->end && *reader->at == 'n')
        return pass_word(reader, "null");
    return field->read(reader, field);
}

static int read_list(reader_t *reader, const field_t *field) {
    const field_t *item = &reader->fields[field->first];
    level_t *items = field->column->items;
    if (!took(reader, '['))
        return 0;
    skip_blank(reader);
    if (!took(reader, ']')) {
        for (;;) {
            level_open(items);
            skip_blank(reader);
            if (!read_field(reader, item))
                return 0;
            level_close(items);
            skip_blank(reader);
            if (took(reader, ']'))
                break;
            if (!took(reader, ','))
                return 0;
        }
    }
    fill(field->column);
    return 1;
}

/* --- objects ---------------------------------------------------------------------------------- */

static inline uint32_t hash_of(const uint8_t *name, size_t size) {
    uint32_t hash = 2166136261u ^ (uint32_t)size;
    for (size_t at = 0; at < size; at++)
        hash = (hash ^ name[at]) * 16777619u;
    return hash ^ hash >> 15;
}

static int32_t find_name(const reader_t *reader, const field_t *field, const uint8_t *name,
                         size_t size) {
    for (uint32_t at = hash_of(name, size) & field->mask;; at = (at + 1) & field->mask) {
        int32_t number = field->table[at];
        if (number < 0)
            return -1;
        const column_t *column = reader->fields[number].column;
        if (column->name_size == size && memcmp(column->name, name, size) == 0)
            return number;
    }
}

static inline uint64_t word_at(const void *at) {
    uint64_t word;
    memcpy(&word, at, 8);
    return word;
}

static inline int is_guessed(const reader_t *reader, const guess_t *guess, const uint8_t *at) {
    size_t size = guess->size;
    if (size == 0 || (size_t)(reader->limit - at) < MOST_OF_NAME + 1 ||
        (size_t)(reader->end - at) <= size || at[size] != '"')
        return 0;
    size_t done = 0;
    for (; done + 8 <= size; done += 8)
        if (word_at(guess->name + done) != word_at(at + done))
            return 0;
    if (done == size)
        return 1;
    unsigned unused = (unsigned)(8 * (8 - (size - done)));
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    return (word_at(guess->name + done) ^ word_at(at + done)) << unused == 0;
#else
    return (word_at(guess->name + done) ^ word_at(at + done)) >> unused == 0;
#endif
}

/* Read a member's name, after its quote. Returns its field's number, -1 where there is none, or -2
 * where it is no name. */
static inline int32_t read_name(reader_t *reader, const field_t *field, guess_t *guess) {
    if (is_guessed(reader, guess, reader->at)) {
        reader->at += guess->size + 1u;
        return guess->number;
    }
    text_t text;
    if (!read_text(reader, &text))
        return -2;
    if (text.has_escapes) {
        have_plain(reader, &text);
        return find_name(reader, field, text.start, text.size);
    }
    int32_t number = find_name(reader, field, text.start, text.size);
    if (text.size > 0 && text.size <= MOST_OF_NAME) {
        memset(guess->name, 0, sizeof guess->name);
        memcpy(guess->name, text.start, text.size);
        guess->size = (uint8_t)text.size;
        guess->number = number;
    }
    return number;
}

static int read_object(reader_t *reader, const field_t *field) {
    if (!took(reader, '{'))
        return 0;
    uint64_t object = ++reader->objects;
    skip_blank(reader);
    if (!took(reader, '}')) {
        for (unsigned member = 0;; member++) {
            const uint8_t *start = reader->at;
            if (!took(reader, '"'))
                return 0;
            int32_t number = read_name(reader, field, &field->guesses[member % GUESSES]);
            if (number == -2)
                return 0;
            skip_blank(reader);
            if (!took(reader, ':'))
                return 0;
            if (number < 0) {
                if (!pass_value(reader))
                    return 0;
            } else {
                if (reader->seen[number] == object)
                    return fits_not(reader, start);
                reader->seen[number] = object;
                skip_blank(reader);
                if (!read_field(reader, &reader->fields[number]))
                    return 0;
            }
            skip_blank(reader);
            if (took(reader, '}'))
                break;
            if (!took(reader, ','))
                return 0;
            skip_blank(reader);
        }
    }
    fill(field->column);
    return 1;
}

/* --- all values ------------------------------------------------------------------------------- */

static read_t read_of(const column_t *column, int unit) {
    const char *format = column->format;
    switch (format[0]) {
    case 'b': return read_bool;
    case 'c':
    case 's':
    case 'i':
    case 'l': return read_whole;
    case 'f': return read_float;
    case 'g': return read_double;
    case 'u': return read_string;
    case 'd': return column->scale < 0 ? NULL : read_decimal;
    case '+': return format[1] == 's' ? read_object : format[1] == 'l' ? read_list : NULL;
    default:
        if (strcmp(format, "tdD") == 0)
            return read_day;
        if (strncmp(format, "tsu:", 4) != 0)
            return NULL;
        return format[4] != 0 && unit != ISO ? read_epoch : read_time;
    }
}

static void *zeros(size_t count, size_t size) {
    void *found = calloc(count, size);
    if (found == NULL)
        abort();
    return found;
}

/* Get ready to read a column and what is inside of it. Returns whether that can be read. */
static int open_field(reader_t *reader, column_t *column) {
    field_t *field = &reader->fields[column->number];
    field->column = column;
    field->read = read_of(column, reader->unit);
    if (field->read == NULL)
        return 0;
    for (int32_t at = 0; at < column->child_count; at++)
        if (!open_field(reader, &column->children[at]))
            return 0;
    field->count = column->child_count;
    field->first = column->child_count ? column->children[0].number : 0;
    if (column->layout != STRUCT)
        return 1;
    uint32_t room = 4;
    while (room < 2 * (uint32_t)column->child_count)
        room *= 2;
    field->mask = room - 1;
    field->guesses = zeros(GUESSES, sizeof(guess_t));
    field->table = zeros(room, sizeof(int32_t));
    memset(field->table, 0xff, room * sizeof(int32_t));
    for (int32_t at = 0; at < column->child_count; at++) {
        const column_t *child = &column->children[at];
        uint32_t place = hash_of((const uint8_t *)child->name, child->name_size) & field->mask;
        while (field->table[place] >= 0)
            place = (place + 1) & field->mask;
        field->table[place] = child->number;
    }
    return 1;
}

static void close_reader(reader_t *reader, int32_t count) {
    for (int32_t at = 0; at < count; at++) {
        free(reader->fields[at].table);
        free(reader->fields[at].guesses);
    }
    free(reader->fields);
    free(reader->seen);
    free(reader->scratch);
    free(reader->nesting);
    if (reader->plain != (locale_t)0)
        freelocale(reader->plain);
}

/* Read the value between ``reader->at`` and its end. Returns whether it is one object that fits. */
static int read_document(reader_t *reader) {
    skip_blank(reader);
    if (!read_object(reader, &reader->fields[0]))
        return 0;
    skip_blank(reader);
    return reader->at == reader->end;
}

/* Read values in JSON as rows of a struct. ``unit`` is ISO, or how many digits after the point of
 * a moment as a number are microseconds. ``bad`` has room for two numbers for each value: the place
 * of one that does not fit, and at which byte it was found. Returns how many there are, -1 where
 * the struct has a type that is not read here. */
int64_t headrace_read_json(const struct ArrowSchema *schema, const struct ArrowArray *array,
                           int large, int unit, struct ArrowArray *rows, int64_t *bad) {
    values_t values = values_of(array, large);
    columns_t columns;
    if (columns_open(&columns, schema, values.count))
        return -1;
    int32_t count = columns.count;
    reader_t reader = {.fields = zeros((size_t)count, sizeof(field_t)),
                       .seen = zeros((size_t)count, sizeof(uint64_t)),
                       .unit = unit,
                       .limit = values.data + begin_of(&values, values.count),
                       .plain = newlocale(LC_ALL_MASK, "C", (locale_t)0)};
    if (!open_field(&reader, columns.root)) {
        close_reader(&reader, count);
        columns_drop(&columns);
        return -1;
    }
    level_t *level = columns.root->level;
    int64_t found = 0;
    for (int64_t place = 0; place < values.count; place++) {
        const uint8_t *start = values.data + begin_of(&values, place);
        reader.at = start;
        reader.end = values.data + begin_of(&values, place + 1);
        if (is_value(&values, place) && !read_document(&reader)) {
            bad[2 * found] = place;
            bad[2 * found++ + 1] = reader.at - start;
            level_cut(level, place);
        }
        level_close(level);
    }
    close_reader(&reader, count);
    columns_give(&columns, rows);
    return found;
}
