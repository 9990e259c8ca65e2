/* Runs a fuzz target over a kept corpus and over mutations of it.
 *
 * The code under test is compiled with -fsanitize-coverage=trace-pc, so that each edge it takes
 * calls __sanitizer_cov_trace_pc below. An input that takes an edge, or takes one so many times, as
 * none before did joins the corpus in memory, and is mutated in its turn; with --save it is also
 * written out, to be kept for good.
 *
 * The input at work lies in a file that is mapped: whatever ends the program, it is there to be run
 * again. A timer ends a program that stays with one input for too long; a peak of memory beyond the
 * limit fails it.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"

#define MAX_ENTRIES 8192
#define MAX_BYTES ((size_t)64 << 10) /* of a mutation; kept inputs may be larger */
#define MAP_BITS 16
#define HANG_S 30
#define LONG_S 3600
#define DEFAULT_S 60

struct entry {
    uint8_t *bytes;
    size_t n;
};

static struct entry corpus[MAX_ENTRIES];
static size_t n_entries;

/* ---- Coverage ---- */

static uint8_t taken[1 << MAP_BITS]; /* times, by this input */
static uint8_t seen[1 << MAP_BITS];  /* bits: how many times, in powers of two, by any input */
static uintptr_t previous;

void __sanitizer_cov_trace_pc(void);

void __sanitizer_cov_trace_pc(void)
{
    uintptr_t here =
        (uintptr_t)__builtin_return_address(0) * 0x9e3779b97f4a7c15u >> (64 - MAP_BITS);
    uint8_t *count = &taken[here ^ previous];
    *count += *count < 255;
    previous = here >> 1;
}

static uint8_t power_of(uint8_t count)
{
    return (uint8_t)(1u << (31 - __builtin_clz(count)));
}

/* Whether this input did what none before it did; remembers it. */
static bool is_new(void)
{
    bool new = false;
    for (size_t i = 0; i < sizeof taken; i += sizeof(uint64_t)) {
        uint64_t any;
        memcpy(&any, taken + i, sizeof any);
        for (size_t k = i; any && k < i + sizeof any; k++) {
            uint8_t power = taken[k] ? power_of(taken[k]) : 0;
            new = new || (power & ~seen[k]);
            seen[k] |= power;
        }
    }
    return new;
}

static size_t edges(void)
{
    size_t n = 0;
    for (size_t i = 0; i < sizeof seen; i++)
        n += seen[i] != 0;
    return n;
}

/* ---- The input at work ---- */

static const char *input_path;
static uint8_t *input_map;
static volatile sig_atomic_t seconds_with_it;

static void fail(const char *what)
{
    perror(what);
    exit(2);
}

static void on_tick(int signal)
{
    static const char message[] = "fuzz: an input hangs\n";
    (void)signal;
    if (++seconds_with_it < HANG_S)
        return;
    ssize_t written = write(STDERR_FILENO, message, sizeof message - 1);
    (void)written;
    abort();
}

static void watch_inputs(const char *name)
{
    static char path[256];
    snprintf(path, sizeof path, "%s-%d.input", name, (int)getpid());
    input_path = path;
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0 || ftruncate(fd, (off_t)MAX_BYTES) != 0)
        fail(path);
    input_map = mmap(NULL, MAX_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (input_map == MAP_FAILED)
        fail(path);
    close(fd);
    struct sigaction action = {.sa_handler = on_tick, .sa_flags = SA_RESTART};
    struct itimerval second = {{1, 0}, {1, 0}};
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &second, NULL);
    printf("fuzz: if this fails, %s begins with the input\n", path);
    fflush(stdout);
}

static void run(const uint8_t *bytes, size_t n)
{
    memcpy(input_map, bytes, n < MAX_BYTES ? n : MAX_BYTES);
    /* Memory of its own, of just this size: the sanitizer sees who reads beyond it. */
    uint8_t *exact = malloc(n ? n : 1);
    if (!exact)
        fail("malloc");
    memcpy(exact, bytes, n);
    memset(taken, 0, sizeof taken);
    previous = 0;
    seconds_with_it = 0;
    fuzz_one(exact, n);
    free(exact);
}

/* ---- Randomness: xorshift64* ---- */

static uint64_t state;

static uint64_t random_below(uint64_t n)
{
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (state * 0x2545f4914f6cdd1du >> 16) % n;
}

/* ---- Mutations ---- */

struct buffer {
    uint8_t bytes[MAX_BYTES];
    size_t n;
};

/* Puts n bytes in place of the `removed` at `at`, as far as there is room. */
static void replace(struct buffer *b, size_t at, size_t removed, const void *bytes, size_t n)
{
    if (b->n - removed + n > MAX_BYTES)
        return;
    memmove(b->bytes + at + n, b->bytes + at + removed, b->n - at - removed);
    if (n)
        memcpy(b->bytes + at, bytes, n);
    b->n += n - removed;
}

static size_t random_length(size_t most)
{
    size_t small = random_below(4) ? 8 : most;
    return most ? 1 + random_below(small < most ? small : most) : 0;
}

static void put_word(struct buffer *b, size_t at)
{
    size_t n = 0;
    while (fuzz_words[n])
        n++;
    if (!n)
        return;
    const char *word = fuzz_words[random_below(n)];
    size_t length = strlen(word), left = b->n - at;
    replace(b, at, random_below(2) ? 0 : length < left ? length : left, word, length);
}

static bool is_digit(uint8_t c)
{
    return c >= '0' && c <= '9';
}

/* The number around or behind `at` becomes another. */
static void put_number(struct buffer *b, size_t at)
{
    static const char *const numbers[] = {"0",
                                          "1",
                                          "-1",
                                          "2",
                                          "7",
                                          "64",
                                          "255",
                                          "256",
                                          "4096",
                                          "65536",
                                          "2147483647",
                                          "4294967296",
                                          "9007199254740993",
                                          "9223372036854775808",
                                          "0.5",
                                          "1e-300",
                                          "1e300",
                                          "1e999",
                                          "-0"};
    while (at < b->n && !is_digit(b->bytes[at]))
        at++;
    size_t end = at;
    while (at > 0 && is_digit(b->bytes[at - 1]))
        at--;
    while (end < b->n && is_digit(b->bytes[end]))
        end++;
    const char *number = numbers[random_below(sizeof numbers / sizeof *numbers)];
    if (end > at)
        replace(b, at, end - at, number, strlen(number));
}

static void put_other(struct buffer *b, size_t at)
{
    const struct entry *other = &corpus[random_below(n_entries)];
    if (!other->n)
        return;
    size_t from = random_below(other->n), n = random_length(other->n - from);
    size_t left = b->n - at;
    replace(b, at, random_below(2) ? 0 : n < left ? n : left, other->bytes + from, n);
}

static void mutate_once(struct buffer *b)
{
    uint8_t bytes[8];
    size_t at = random_below(b->n + 1), left = b->n - at, n = random_length(left);
    uint64_t noise = random_below(UINT64_C(1) << 48);
    memcpy(bytes, &noise, sizeof bytes);
    switch (random_below(10)) {
    case 0:
        if (left)
            b->bytes[at] ^= (uint8_t)(1u << random_below(8));
        break;
    case 1:
        if (left)
            b->bytes[at] = bytes[0];
        break;
    case 2:
        replace(b, at, 0, bytes, 1 + random_below(sizeof bytes - 2));
        break;
    case 3:
        replace(b, at, n, NULL, 0);
        break;
    case 4: { /* once more, behind itself */
        uint8_t *copy = malloc(n ? n : 1);
        if (copy && n) {
            memcpy(copy, b->bytes + at, n);
            for (uint64_t i = random_below(8) ? 1 : 64; i; i--)
                replace(b, at, 0, copy, n);
        }
        free(copy);
        break;
    }
    case 5:
        put_other(b, at);
        break;
    case 6:
        put_number(b, at);
        break;
    case 7: /* the end is missing */
        if (random_below(8) == 0)
            b->n = at;
        break;
    default:
        put_word(b, at);
    }
}

static void mutate(struct buffer *b)
{
    const struct entry *base = &corpus[random_below(n_entries)];
    b->n = base->n < MAX_BYTES ? base->n : MAX_BYTES;
    memcpy(b->bytes, base->bytes, b->n);
    do
        mutate_once(b);
    while (random_below(3));
}

/* ---- The corpus ---- */

static void keep(const uint8_t *bytes, size_t n, const char *save)
{
    if (n_entries == MAX_ENTRIES)
        return;
    uint8_t *copy = malloc(n ? n : 1);
    if (!copy)
        fail("malloc");
    memcpy(copy, bytes, n);
    corpus[n_entries++] = (struct entry){copy, n};
    if (!save)
        return;
    char path[4096];
    uint64_t hash = 14695981039346656037u; /* FNV-1a */
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ bytes[i]) * 1099511628211u;
    snprintf(path, sizeof path, "%s/%016" PRIx64, save, hash);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(bytes, 1, n, f) != n || fclose(f) != 0)
        fail(path);
}

static void read_file(const char *path)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) != 0)
        fail(path);
    if (S_ISREG(st.st_mode)) {
        uint8_t *bytes = malloc((size_t)st.st_size + 1);
        if (!bytes || read(fd, bytes, (size_t)st.st_size) != st.st_size)
            fail(path);
        run(bytes, (size_t)st.st_size);
        is_new();
        keep(bytes, (size_t)st.st_size, NULL);
        free(bytes);
    }
    close(fd);
}

static void read_corpus(const char *path)
{
    struct dirent **names;
    int n = scandir(path, &names, NULL, alphasort);
    if (n < 0 && errno == ENOTDIR) {
        read_file(path);
        return;
    }
    if (n < 0)
        fail(path);
    for (int i = 0; i < n; i++) {
        char file[4096];
        snprintf(file, sizeof file, "%s/%s", path, names[i]->d_name);
        if (names[i]->d_name[0] != '.')
            read_file(file);
        free(names[i]);
    }
    free(names);
}

/* ---- The program ---- */

static int usage(FILE *to)
{
    fprintf(to,
            "usage: [--seconds N] [--seed N] [--memory MIB] [--save DIRECTORY] CORPUS...\n"
            "\n"
            "Runs every file of CORPUS, then mutations of them for so many seconds: %d, or %d\n"
            "where DLLMD_TEST_LONG is set, unless N says otherwise; 0: none. --save keeps what\n"
            "finds something new.\n",
            DEFAULT_S, LONG_S);
    return to == stdout ? EXIT_SUCCESS : 2;
}

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void fuzz(double seconds, const char *save)
{
    static struct buffer b;
    uint64_t inputs = 0;
    double began = now_s();
    while (now_s() - began < seconds) {
        mutate(&b);
        run(b.bytes, b.n);
        inputs++;
        if (is_new())
            keep(b.bytes, b.n, save);
    }
    printf("fuzz: %" PRIu64 " inputs, %zu edges, %zu in the corpus\n", inputs, edges(), n_entries);
}

static int finish(long memory_mib)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    printf("fuzz: at most %ld MiB\n", usage.ru_maxrss / 1024);
    bool bounded = usage.ru_maxrss / 1024 <= memory_mib;
    if (!bounded)
        fprintf(stderr, "fuzz: that is beyond %ld MiB\n", memory_mib);
    for (size_t i = 0; i < n_entries; i++)
        free(corpus[i].bytes);
    unlink(input_path);
    return bounded ? EXIT_SUCCESS : EXIT_FAILURE;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"seconds", required_argument, NULL, 's'}, {"seed", required_argument, NULL, 'r'},
        {"memory", required_argument, NULL, 'm'},  {"save", required_argument, NULL, 'o'},
        {"help", no_argument, NULL, 'h'},          {0},
    };
    double seconds = getenv("DLLMD_TEST_LONG") ? LONG_S : DEFAULT_S;
    uint64_t seed = (uint64_t)time(NULL) << 20 ^ (uint64_t)getpid();
    long memory_mib = 1024;
    const char *save = NULL, *name = strrchr(argv[0], '/');
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (option == 's')
            seconds = atof(optarg);
        else if (option == 'r')
            seed = strtoull(optarg, NULL, 10);
        else if (option == 'm')
            memory_mib = atol(optarg);
        else if (option == 'o')
            save = optarg;
        else
            return usage(option == 'h' ? stdout : stderr);
    }
    if (optind == argc)
        return usage(stderr);
    state = seed ? seed : 1;
    watch_inputs(name ? name + 1 : argv[0]);
    for (int i = optind; i < argc; i++)
        read_corpus(argv[i]);
    if (!n_entries) {
        fputs("fuzz: the corpus is empty\n", stderr);
        return 2;
    }
    printf("fuzz: %zu inputs kept, %zu edges; seed %" PRIu64 "\n", n_entries, edges(), seed);
    fflush(stdout);
    fuzz(seconds, save);
    return finish(memory_mib);
}
