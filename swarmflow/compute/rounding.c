/* The inner loops of rounding.py for CPUs: what several passes of torch do over a gradient, in one each.
 *
 * Plain C without Python.h, called through ctypes, so that a compiler is all that it takes to build. The results are
 * those of the passes of torch, bit by bit.
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

enum { BLOCK_ELEMENTS = 256, DITHER_BLOCKS = 256 };

/* gradient: fp32 [blocks * 256]. peaks: fp32 [blocks], the largest absolute value of each; of one with a value that is
 * not a number, none either.
 */
FOR_EACH_PROCESSOR
void swarmflow_peaks(const float *gradient, ptrdiff_t blocks, float *peaks)
{
    for (ptrdiff_t block = 0; block < blocks; block++) {
        int32_t bits[BLOCK_ELEMENTS], largest = 0;
        memcpy(bits, gradient + block * BLOCK_ELEMENTS, sizeof bits);
        /* Without their sign, fp32 numbers are ordered as their bits are, and above infinity come those that are none. */
        for (int at = 0; at < BLOCK_ELEMENTS; at++) {
            int32_t size = bits[at] & INT32_MAX;
            largest = size > largest ? size : largest;
        }
        memcpy(peaks + block, &largest, sizeof largest);
    }
}

/* sums += weight * floor(gradient * scale + dither). gradient: fp32 [blocks * 256]; scales: fp32 [blocks]; dither: fp32
 * [65536], which repeats, and begins with its block `first`; sums: int16 [blocks * 256].
 */
FOR_EACH_PROCESSOR
void swarmflow_add_rounded(const float *restrict gradient, const float *restrict scales, const float *restrict dither,
                           ptrdiff_t first, ptrdiff_t blocks, int weight, int16_t *restrict sums)
{
    for (ptrdiff_t block = 0; block < blocks; block++) {
        const float *offsets = dither + (first + block) % DITHER_BLOCKS * BLOCK_ELEMENTS;
        const float scale = scales[block];
        for (int at = 0; at < BLOCK_ELEMENTS; at++) {
            float value = offsets[at] + gradient[at] * scale;
            int32_t whole = (int32_t)value;
            whole -= (float)whole > value; /* the conversion cuts off: this makes it a floor, which vectorizes everywhere */
            sums[at] = (int16_t)(sums[at] + whole * weight);
        }
        gradient += BLOCK_ELEMENTS;
        sums += BLOCK_ELEMENTS;
    }
}
