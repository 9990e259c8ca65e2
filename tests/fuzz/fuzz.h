/* What a fuzz target says of itself; driver.c is the rest of the program. */
#ifndef TESTS_FUZZ_H
#define TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>

/* One input, which belongs to the driver. Whatever it is, this neither crashes nor hangs, takes
 * memory in proportion, and leaves nothing behind. */
void fuzz_one(const uint8_t *bytes, size_t n);

/* Words that inputs of this kind are made of; NULL ends them. */
extern const char *const fuzz_words[];

#endif
