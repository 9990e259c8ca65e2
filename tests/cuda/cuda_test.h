/* The parts of the test program of the CUDA plugin. */
#ifndef TEST_CUDA_TEST_H
#define TEST_CUDA_TEST_H

void test_ops(void);
/* Tensors of more than 2^31 elements: every offset must be 64-bit. Takes some 40 GB. */
void test_large(void);
/* Prints what the operations reach of the rate at which memory is copied, and products of matrices.
 */
void print_speeds(void);

#endif
