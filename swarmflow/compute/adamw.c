/* One pass of AdamW for CPUs: what the operations of torch do to a block in a pass each, and the checksums of its pieces.
 *
 * Plain C without Python.h, called through ctypes, so that a compiler is all that it takes to build. Each operation rounds
 * by itself (-ffp-contract=off), so the results are those of the operations of torch, bit by bit.
 */
#include <math.h>
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

/* A strip stays in a first-level cache, and is so short that the processor loads the next one while it computes: with 1,024
 * elements the sums took three times as long.
 */
enum { STRIP_ELEMENTS = 256, INFINITE = 0x7f800000 };

typedef uint64_t Word __attribute__((may_alias, aligned(4)));

struct Constants {
    float scale, beta1, rest1, beta2, rest2, correction2, eps, correction1, rate, decay;
};

/* The sum of the bits of so many values, 64 at a time; the last one of an odd number as a signed integer. */
INLINE int64_t sum_of_bits(const float *values, ptrdiff_t elements)
{
    const Word *words = (const Word *)values;
    uint64_t sum = 0;
    for (ptrdiff_t at = 0; at < elements / 2; at++)
        sum += words[at];
    if (elements % 2) {
        int32_t last;
        memcpy(&last, values + elements - 1, sizeof last);
        sum += (uint64_t)(int64_t)last;
    }
    return (int64_t)sum;
}

/* Returns the bits of the largest value, without its sign, among the new parameters and what was divided by. */
INLINE int32_t update(float *restrict params, float *restrict first, float *restrict second,
                      const float *restrict gradient, ptrdiff_t elements, const struct Constants c)
{
    int32_t largest = 0;
    for (ptrdiff_t at = 0; at < elements; at++) {
        const float value = gradient[at] * c.scale, square = value * value;
        const float mean = first[at] * c.beta1 + value * c.rest1;
        const float spread = second[at] * c.beta2 + square * c.rest2;
        const float below = sqrtf(spread) * c.correction2 + c.eps;
        const float param = params[at] * c.decay - mean / below * c.correction1 * c.rate;
        int32_t divisor_bits, param_bits;
        first[at] = mean;
        second[at] = spread;
        params[at] = param;
        memcpy(&divisor_bits, &below, sizeof below);
        memcpy(&param_bits, &param, sizeof param);
        divisor_bits &= INT32_MAX;
        param_bits &= INT32_MAX;
        largest = divisor_bits > largest ? divisor_bits : largest;
        largest = param_bits > largest ? param_bits : largest;
    }
    return largest;
}

/* Updates so many values of params, first and second in place, all fp32. before, after: int64 [pieces] of each of the
 * three, the sums of the bits of its pieces; or null. Returns whether all that was computed is finite.
 */
FOR_EACH_PROCESSOR
int swarmflow_adamw(float *params, float *first, float *second, const float *gradient, ptrdiff_t elements,
                    ptrdiff_t piece_elements, const struct Constants *constants, int64_t *const *before,
                    int64_t *const *after)
{
    int32_t largest = 0;
    float *const tensors[3] = {params, first, second};
    for (ptrdiff_t start = 0, piece = 0; start < elements; start += piece_elements, piece++) {
        const ptrdiff_t stop = start + piece_elements < elements ? start + piece_elements : elements;
        uint64_t sums[2][3] = {{0}};
        for (ptrdiff_t at = start; at < stop; at += STRIP_ELEMENTS) {
            const ptrdiff_t count = at + STRIP_ELEMENTS < stop ? STRIP_ELEMENTS : stop - at;
            for (int of = 0; before && of < 3; of++)
                sums[0][of] += (uint64_t)sum_of_bits(tensors[of] + at, count);
            const int32_t found = update(params + at, first + at, second + at, gradient + at, count, *constants);
            largest = found > largest ? found : largest;
            for (int of = 0; after && of < 3; of++)
                sums[1][of] += (uint64_t)sum_of_bits(tensors[of] + at, count);
        }
        for (int of = 0; of < 3; of++) {
            if (before)
                before[of][piece] = (int64_t)sums[0][of];
            if (after)
                after[of][piece] = (int64_t)sums[1][of];
        }
    }
    return largest < INFINITE;
}
