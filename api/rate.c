#include "api/rate.h"

#include <netinet/in.h>
#include <string.h>

static void key_of(const struct sockaddr *from, uint8_t key[16])
{
    memset(key, 0, 16);
    if (from && from->sa_family == AF_INET) {
        memcpy(key, &((const struct sockaddr_in *)from)->sin_addr, 4);
        key[15] = 4; /* no IPv6 network has this */
    } else if (from && from->sa_family == AF_INET6) {
        memcpy(key, &((const struct sockaddr_in6 *)from)->sin6_addr, 8);
    }
}

static uint32_t hash(const uint8_t key[16])
{
    uint32_t h = 2166136261u; /* FNV-1a */
    for (int i = 0; i < 16; i++)
        h = (h ^ key[i]) * 16777619u;
    return h;
}

static double full(const struct rate *rate)
{
    double burst = rate->per_s * RATE_BURST_S;
    return burst > 1 ? burst : 1;
}

static double level_at(const struct rate *rate, const struct rate_bucket *b, double now_s)
{
    double level = b->time_s ? b->level + (now_s - b->time_s) * rate->per_s : full(rate);
    return level < full(rate) ? level : full(rate);
}

/* The address's bucket, its level brought up to now. */
static struct rate_bucket *find(struct rate *rate, const struct sockaddr *from, double now_s)
{
    uint8_t key[16];
    key_of(from, key);
    uint32_t h = hash(key);
    struct rate_bucket *fullest = NULL;
    for (uint32_t i = 0; i < RATE_NEAR; i++) {
        struct rate_bucket *b = &rate->buckets[(h + i) % RATE_BUCKETS];
        double level = level_at(rate, b, now_s);
        if (b->time_s && memcmp(b->address, key, sizeof key) == 0) {
            b->level = level;
            b->time_s = now_s;
            return b;
        }
        if (!fullest || level > level_at(rate, fullest, now_s))
            fullest = b;
    }
    memcpy(fullest->address, key, sizeof key);
    fullest->level = full(rate);
    fullest->time_s = now_s;
    return fullest;
}

bool rate_take(struct rate *rate, const struct sockaddr *from, double now_s, double *wait_s)
{
    if (rate->per_s <= 0)
        return true;
    struct rate_bucket *b = find(rate, from, now_s);
    if (b->level < 1) {
        *wait_s = (1 - b->level) / rate->per_s;
        return false;
    }
    b->level -= 1;
    return true;
}

void rate_charge(struct rate *rate, const struct sockaddr *from, double now_s, double cost)
{
    if (rate->per_s <= 0)
        return;
    struct rate_bucket *b = find(rate, from, now_s);
    b->level = b->level > cost ? b->level - cost : 0;
}
