/* Structured log lines on standard error: "2026-01-02T03:04:05.678Z info message key=value".
 * Thread-safe: one line is one write(2). Under systemd (JOURNAL_STREAM set) the time is left out
 * and the level is written as the journal's <N> prefix. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include <stdbool.h>

enum log_level { LOG_LEVEL_DEBUG, LOG_LEVEL_INFO, LOG_LEVEL_WARNING, LOG_LEVEL_ERROR };

void log_set_level(enum log_level least);
void log_at(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* What a line is about, for those that keep fields with lines; 0 (of rank: -1) says nothing. */
struct log_subject {
    long long job, attempt, task;
    int rank;
};
void log_about(enum log_level level, const struct log_subject *subject, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Takes each line, without level, time and newline, in place of standard error; false: it could
 * not, and standard error gets it. `subject` may be NULL. Any thread; set before there are others.
 */
typedef bool log_sink_fn(enum log_level level, const struct log_subject *subject, const char *text);
void log_set_sink(log_sink_fn *sink);

#define log_debug(...) log_at(LOG_LEVEL_DEBUG, __VA_ARGS__)
#define log_info(...) log_at(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_warning(...) log_at(LOG_LEVEL_WARNING, __VA_ARGS__)
#define log_error(...) log_at(LOG_LEVEL_ERROR, __VA_ARGS__)

#endif
