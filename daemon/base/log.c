#include "daemon/base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static _Atomic int least_level = LOG_LEVEL_INFO;

void log_set_level(enum log_level least)
{
    least_level = (int)least;
}

static log_sink_fn *sink;

void log_set_sink(log_sink_fn *fn)
{
    sink = fn;
}

/* Time and level, or the journal's prefix. */
static int begin_line(enum log_level level, char *line, size_t size)
{
    static const char *const names[] = {"debug", "info", "warning", "error"};
    static const int journal_priorities[] = {7, 6, 4, 3};
    if (getenv("JOURNAL_STREAM"))
        return snprintf(line, size, "<%d>", journal_priorities[level]);
    struct timespec now;
    struct tm utc;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    int n = (int)strftime(line, size, "%Y-%m-%dT%H:%M:%S", &utc);
    return n +
           snprintf(line + n, size - (size_t)n, ".%03ldZ %s ", now.tv_nsec / 1000000, names[level]);
}

static void write_line(enum log_level level, const struct log_subject *subject, const char *format,
                       va_list args)
{
    if ((int)level < least_level)
        return;
    int saved_errno = errno;
    char line[4096];
    int begin = begin_line(level, line, sizeof line);
    int body = vsnprintf(line + begin, sizeof line - (size_t)begin - 1, format, args);
    int n = begin + (body < 0 ? 0 : body);
    if (n > (int)sizeof line - 2)
        n = (int)sizeof line - 2;
    for (int i = begin; i < n; i++)
        if (line[i] == '\n')
            line[i] = ' ';
    if (!sink || !sink(level, subject, line + begin)) {
        line[n++] = '\n';
        if (write(STDERR_FILENO, line, (size_t)n) < 0) {
            /* nowhere left to say it */
        }
    }
    errno = saved_errno;
}

void log_at(enum log_level level, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    write_line(level, NULL, format, args);
    va_end(args);
}

void log_about(enum log_level level, const struct log_subject *subject, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    write_line(level, subject, format, args);
    va_end(args);
}
