/* The inner loops of moments.py for CPUs: 8-bit codes of blocks of 256 numbers, and numbers of codes, in one pass each.
 *
 * Plain C without Python.h, called through ctypes, so that a compiler is all that it takes to build. The results are
 * those of the passes of numpy, bit by bit.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The dynamic linker picks the variant for the processor at hand; glibc alone can. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define FOR_EACH_PROCESSOR __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FOR_EACH_PROCESSOR
#endif
#define INLINE static inline __attribute__((always_inline))

enum { BLOCK_ELEMENTS = 256 };

INLINE ptrdiff_t block_at(ptrdiff_t at, ptrdiff_t elements)
{
    return BLOCK_ELEMENTS < elements - at ? BLOCK_ELEMENTS : elements - at;
}

/* Without their sign, fp32 numbers are ordered as their bits are. */
INLINE float largest(const float *values, ptrdiff_t count)
{
    int32_t found = 0;
    for (ptrdiff_t at = 0; at < count; at++) {
        int32_t size;
        memcpy(&size, values + at, sizeof size);
        size &= INT32_MAX;
        found = size > found ? size : found;
    }
    float scale;
    memcpy(&scale, &found, sizeof scale);
    return scale;
}

/* values: fp32 [elements]. lowest: of each pattern of the upper 16 bits of a number, the place of the share that is
 * nearest to the lowest number that has it. ends: fp32 [256], up to where a place reaches. zero: the place of 0. Sets
 * codes, uint8 [elements], and scales, fp32 [blocks].
 */
FOR_EACH_PROCESSOR
void swarmflow_encode(const float *values, ptrdiff_t elements, const uint8_t *lowest, const float *ends, int zero,
                      uint8_t *codes, float *scales)
{
    for (ptrdiff_t start = 0; start < elements; start += BLOCK_ELEMENTS) {
        const ptrdiff_t count = block_at(start, elements);
        const float scale = largest(values + start, count), divisor = scale > 0 ? scale : 1;
        float shares[BLOCK_ELEMENTS];
        uint8_t places[BLOCK_ELEMENTS];
        *scales++ = scale;
        for (ptrdiff_t at = 0; at < count; at++)
            shares[at] = values[start + at] / divisor;
        for (ptrdiff_t at = 0; at < count; at++) {
            uint32_t bits;
            memcpy(&bits, shares + at, sizeof bits);
            places[at] = lowest[bits >> 16];
        }
        for (ptrdiff_t at = 0; at < count; at++)
            codes[start + at] = (uint8_t)(places[at] + (shares[at] > ends[places[at]]) - zero);
    }
}

/* Sets values, fp32 [elements], to those of codes. by_code: fp32 [256], the shares. */
FOR_EACH_PROCESSOR
void swarmflow_decode(const uint8_t *codes, const float *scales, ptrdiff_t elements, const float *by_code, float *values)
{
    for (ptrdiff_t start = 0; start < elements; start += BLOCK_ELEMENTS) {
        const ptrdiff_t count = block_at(start, elements);
        const float scale = *scales++;
        for (ptrdiff_t at = 0; at < count; at++)
            values[start + at] = by_code[codes[start + at]] * scale;
    }
}
