/* Numbers as the bytes of Avro and of Protobuf, one after another, and where each begins. */

#include "columns.h"

/* Writes whole numbers of 64 bits by seven bits a byte, the lowest first; those with a sign as Avro
   and Protobuf fold it, where ``folded`` says so. ``offsets`` has one place more than there are
   numbers. Without ``out`` only these are written. Returns how many bytes there are. */
int64_t headrace_write_varints(const int64_t *numbers, int64_t count, int folded, int64_t *offsets,
                               uint8_t *out) {
  int64_t end = 0;
  offsets[0] = 0;
  for (int64_t i = 0; i < count; i++) {
    uint64_t v = (uint64_t)numbers[i];
    if (folded) v = v << 1 ^ (numbers[i] < 0 ? UINT64_MAX : 0);
    for (; v > 0x7F; v >>= 7, end++)
      if (out != NULL) out[end] = (uint8_t)(v | 0x80);
    if (out != NULL) out[end] = (uint8_t)v;
    offsets[i + 1] = ++end;
  }
  return end;
}

enum { WIDE = 16 };

/* Writes whole numbers of 128 bits, the highest byte first: each in ``size`` bytes, or, where that
   is 0, in as many as it needs. As headrace_write_varints; ``misfits`` counts those that need more
   than ``size``, of which the lowest bytes are written. */
int64_t headrace_write_wide(const uint8_t *numbers, int64_t count, int64_t size, int64_t *offsets,
                            uint8_t *out, int64_t *misfits) {
  int64_t end = 0;
  offsets[0] = 0;
  *misfits = 0;
  for (int64_t i = 0; i < count; i++) {
    const uint8_t *number = numbers + WIDE * i; /* the lowest byte first */
    uint8_t sign = number[WIDE - 1] & 0x80 ? 0xFF : 0;
    int64_t needed = WIDE;
    while (needed > 1 && number[needed - 1] == sign && !((number[needed - 2] ^ sign) & 0x80))
      needed--;
    int64_t length = size > 0 ? size : needed;
    if (needed > length) ++*misfits;
    if (out != NULL)
      for (int64_t k = 0; k < length; k++) {
        int64_t at = length - 1 - k;
        out[end + k] = at < WIDE ? number[at] : sign;
      }
    end += length;
    offsets[i + 1] = end;
  }
  return end;
}
