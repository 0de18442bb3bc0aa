/* The bytes that the example programs write and expect: each position of a file has its own. */
#ifndef HALOCLINE_EXAMPLE_PATTERN_H
#define HALOCLINE_EXAMPLE_PATTERN_H

#include <stddef.h>
#include <stdint.h>

/* A bijective mix, so that neighbouring words differ in all bytes. */
static inline uint64_t pattern_word(uint64_t seed, uint64_t index)
{
    uint64_t x = seed * 0x9e3779b97f4a7c15u + index + 1;

    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static inline unsigned char pattern_byte(uint64_t seed, uint64_t offset)
{
    return (unsigned char)(pattern_word(seed, offset / 8) >> (offset % 8 * 8));
}

static inline void pattern_fill(uint64_t seed, uint64_t offset, unsigned char *bytes, size_t length)
{
    for (size_t i = 0; i < length; i++)
        bytes[i] = pattern_byte(seed, offset + i);
}

/* The first index that is wrong, or `length`. */
static inline size_t pattern_check(uint64_t seed, uint64_t offset, const unsigned char *bytes,
                                   size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (bytes[i] != pattern_byte(seed, offset + i))
            return i;
    return length;
}

#endif
