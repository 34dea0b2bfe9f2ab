/* Calls every kernel of swarmflow/compute with numbers that it draws itself, and prints a hash of the bits of each result. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

int swarmflow_adamw(float *, float *, float *, const float *, ptrdiff_t, ptrdiff_t, const float *, int64_t *const *,
                    int64_t *const *);
void swarmflow_peaks(const float *, ptrdiff_t, float *);
void swarmflow_add_rounded(const float *, const float *, const float *, ptrdiff_t, ptrdiff_t, int, int16_t *);
void swarmflow_encode(const float *, ptrdiff_t, const uint8_t *, const float *, int, uint8_t *, float *);
void swarmflow_decode(const uint8_t *, const float *, ptrdiff_t, const float *, float *);

enum { ELEMENTS = 65536, BLOCKS = ELEMENTS / 256, PIECE = 4096 };

static uint64_t state = 88172645463325252u;

static uint32_t drawn(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 32);
}

/* A number of either sign with an exponent from `low` on, of `range` of them; each 256th is zero. */
static float number(int low, int range)
{
    uint32_t bits = drawn();
    bits = (bits & 0x807fffffu) | (uint32_t)(low + (int)(drawn() % (uint32_t)range) + 127) << 23;
    if (drawn() % 256 == 0)
        bits = 0;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static float *numbers(float *values, ptrdiff_t count, int low, int range)
{
    for (ptrdiff_t at = 0; at < count; at++)
        values[at] = number(low, range);
    return values;
}

static void show(const char *name, const void *data, size_t bytes)
{
    uint64_t hash = 14695981039346656037u;
    for (size_t at = 0; at < bytes; at++)
        hash = (hash ^ ((const unsigned char *)data)[at]) * 1099511628211u;
    printf("%s %016llx\n", name, (unsigned long long)hash);
}

static float params[ELEMENTS], first[ELEMENTS], second[ELEMENTS], gradient[ELEMENTS], dither[ELEMENTS];
static float scales[BLOCKS], found[BLOCKS], ends[256], by_code[256], decoded[ELEMENTS];
static int16_t rounded[ELEMENTS];
static uint8_t lowest[65536], codes[ELEMENTS];
static int64_t before[3][ELEMENTS / PIECE + 1], after[3][ELEMENTS / PIECE + 1];

int main(void)
{
    const float constants[] = {0.37f, 0.9f, 0.1f, 0.95f, 0.05f, 1.3f, 1e-8f, 1.7f, 3e-4f, 0.99997f};
    int64_t *const befores[3] = {before[0], before[1], before[2]}, *const afters[3] = {after[0], after[1], after[2]};
    numbers(params, ELEMENTS, -12, 14);
    numbers(first, ELEMENTS, -30, 20);
    for (ptrdiff_t at = 0; at < ELEMENTS; at++)
        second[at] = first[at] * first[at];
    numbers(gradient, ELEMENTS, -30, 20);
    for (int round = 0; round < 3; round++)
        printf("finite %d\n", swarmflow_adamw(params, first, second, gradient, ELEMENTS - 77, PIECE, constants, befores,
                                              afters));
    show("parameters", params, sizeof params);
    show("first moments", first, sizeof first);
    show("second moments", second, sizeof second);
    show("sums before", before, sizeof before);
    show("sums after", after, sizeof after);

    for (int block = 0; block < BLOCKS; block++) { /* of a grid: powers of two */
        uint32_t bits = (uint32_t)(127 + drawn() % 16) << 23;
        memcpy(scales + block, &bits, sizeof bits);
    }
    for (ptrdiff_t at = 0; at < ELEMENTS; at++)
        dither[at] = (float)(drawn() >> 8) / 16777216.0f;
    numbers(gradient, ELEMENTS, -20, 18);
    swarmflow_add_rounded(gradient, scales, dither, 3, BLOCKS, 1, rounded);
    swarmflow_add_rounded(gradient, scales, dither, 9, BLOCKS, -1, rounded);
    show("rounded", rounded, sizeof rounded);
    swarmflow_peaks(gradient, BLOCKS, found);
    show("peaks", found, sizeof found);

    for (int at = 0; at < 65536; at++)
        lowest[at] = (uint8_t)drawn();
    numbers(ends, 256, -10, 10);
    numbers(by_code, 256, -10, 10);
    swarmflow_encode(gradient, ELEMENTS - 100, lowest, ends, 31, codes, found);
    show("codes", codes, sizeof codes);
    show("scales of codes", found, sizeof found);
    swarmflow_decode(codes, found, ELEMENTS - 100, by_code, decoded);
    show("decoded", decoded, sizeof decoded);
    return 0;
}
