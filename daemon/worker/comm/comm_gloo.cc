/* Gloo's TCP transport behind comm_gloo.h. Of Gloo only the transport is used: connected pairs and
 * unbound buffers, on which a message is sent or received; its collectives are not.
 *
 * A pair that loses its connection tells the operations that wait for their turn, but not those
 * whose bytes are half over: these would notice by their time limit only. Therefore a thread of
 * the mesh keeps one receive posted at every pair, which nobody ever answers (the watch). It is
 * always waiting for its turn, so it is told at once; the thread then wakes the running exchange.
 * A rank that leaves in good order looks the same, and must not disturb an exchange with others
 * that goes on: so only messages to and from the lost rank are given up, and of these only those
 * that have not arrived.
 */
#include "daemon/worker/comm/comm_gloo.h"

#include <gloo/transport/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/tcp/device.h>

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

using std::chrono::milliseconds;
using steady = std::chrono::steady_clock;
using gloo::transport::UnboundBuffer;

namespace
{

constexpr uint64_t watch_slot = 0;
/* Gloo closes all pairs when a wait runs out, so the watch waits for longer than anybody lives. */
const milliseconds forever = std::chrono::hours(10 * 365 * 24);
/* Gloo multiplies a pair's limit by this while connecting (transport/tcp/pair.h). */
constexpr int connect_factor = 5;

struct Message {
    int peer;
    bool receives;
    std::unique_ptr<UnboundBuffer> buffer;
};

milliseconds limit(double timeout_s)
{
    double ms = std::min(std::max(timeout_s * 1e3, 1.0), (double)forever.count());
    return milliseconds((int64_t)ms);
}

} // namespace

struct gloo_mesh {
    std::string name;
    int rank, world;
    milliseconds timeout;
    std::vector<char> block;
    std::shared_ptr<gloo::transport::Device> device;
    std::shared_ptr<gloo::transport::Context> context;
    uint64_t slot = watch_slot;

    std::mutex mutex;              /* guards what is below */
    std::vector<Message> messages; /* of the running exchange */
    UnboundBuffer *watch = nullptr;
    bool closing = false;

    std::thread watcher;
};

namespace
{

void give_up(gloo_mesh *m, int peer)
{
    std::lock_guard<std::mutex> lock(m->mutex);
    for (auto &message : m->messages) {
        if (message.peer != peer)
            continue;
        if (message.receives)
            message.buffer->abortWaitRecv();
        else
            message.buffer->abortWaitSend();
    }
}

/* Gloo's own look-up takes a name that does not exist for an address. The first address of the name
 * that this machine can listen at. */
gloo::transport::tcp::attr listening_at(const char *address)
{
    struct addrinfo hints = {}, *found;
    hints.ai_socktype = SOCK_STREAM;
    int failed = getaddrinfo(address, nullptr, &hints, &found);
    if (failed)
        throw std::runtime_error(gai_strerror(failed));
    std::unique_ptr<struct addrinfo, decltype(&freeaddrinfo)> all(found, freeaddrinfo);
    for (auto *a = found; a; a = a->ai_next) {
        int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
        bool bound = fd >= 0 && bind(fd, a->ai_addr, a->ai_addrlen) == 0;
        failed = errno;
        if (fd >= 0)
            close(fd);
        if (!bound)
            continue;
        gloo::transport::tcp::attr attr(address);
        attr.ai_family = a->ai_family;
        attr.ai_socktype = a->ai_socktype;
        attr.ai_protocol = a->ai_protocol;
        std::memcpy(&attr.ai_addr, a->ai_addr, a->ai_addrlen);
        attr.ai_addrlen = (int)a->ai_addrlen;
        return attr;
    }
    throw std::system_error(failed, std::generic_category());
}

/* Posts the watch at every pair that stands, waits until one falls, and again. */
void keep_watch(gloo_mesh *m)
{
    std::vector<bool> lost(m->world);
    lost[m->rank] = true;
    for (;;) {
        char nothing;
        auto watch = m->context->createUnboundBuffer(&nothing, 0);
        {
            std::lock_guard<std::mutex> lock(m->mutex);
            if (m->closing)
                return;
            m->watch = watch.get();
        }
        for (int r = 0; r < m->world; r++) {
            if (lost[r])
                continue;
            try {
                watch->recv(r, watch_slot, 0, 0);
            } catch (const std::exception &) {
                lost[r] = true;
                give_up(m, r);
            }
        }
        try {
            watch->waitRecv(nullptr, forever);
        } catch (const std::exception &) {
            /* a pair fell; which one shows when the watch is posted again */
        }
        std::lock_guard<std::mutex> lock(m->mutex);
        m->watch = nullptr;
        if (m->closing)
            return;
    }
}

/* "[file:line] text", without the place in Gloo's sources */
const char *reason(const std::exception &e)
{
    const char *text = e.what();
    const char *end = *text == '[' ? std::strstr(text, "] ") : nullptr;
    return end ? end + 2 : text;
}

/* Runs `body`; a failure is told as one of talking to `peer`. */
template <typename F> struct err *guarded(const gloo_mesh *m, const int *peer, F body)
{
    auto deadline = steady::now() + m->timeout;
    try {
        body(deadline);
        return nullptr;
    } catch (const std::bad_alloc &) {
        return err_no_memory();
    } catch (const std::exception &e) {
        if (steady::now() >= deadline)
            return err_new(ERR_TIMEOUT,
                           "communicator \"%s\": rank %d waited for rank %d for %g s in vain",
                           m->name.c_str(), m->rank, *peer, (double)m->timeout.count() / 1e3);
        return err_new(ERR_ABORTED, "communicator \"%s\": rank %d lost rank %d: %s",
                       m->name.c_str(), m->rank, *peer, reason(e));
    }
}

void post(gloo_mesh *m, int peer, bool receives, void *data, size_t bytes)
{
    auto buffer = m->context->createUnboundBuffer(data, bytes);
    UnboundBuffer *posted = buffer.get();
    {
        std::lock_guard<std::mutex> lock(m->mutex);
        m->messages.push_back({peer, receives, std::move(buffer)});
    }
    if (receives)
        posted->recv(peer, m->slot, 0, bytes);
    else
        posted->send(peer, m->slot, 0, bytes);
}

bool arrived(const Message &message, milliseconds patience)
{
    return message.receives ? message.buffer->waitRecv(nullptr, patience)
                            : message.buffer->waitSend(nullptr, patience);
}

void await(const Message &message, steady::time_point deadline)
{
    auto left = std::chrono::duration_cast<milliseconds>(deadline - steady::now());
    if (arrived(message, std::max(left, milliseconds(0)) + milliseconds(1)))
        return;
    /* Given up; but it may have been complete by then. If not, Gloo throws. */
    try {
        arrived(message, milliseconds(0));
    } catch (const std::exception &) {
        throw std::runtime_error("the connection was closed");
    }
}

} // namespace

struct err *gloo_mesh_open(const char *name, int rank, int world, const char *address,
                           double timeout_s, struct gloo_mesh **out, const void **block,
                           size_t *block_bytes)
{
    try {
        auto m = std::make_unique<gloo_mesh>();
        m->name = name;
        m->rank = rank;
        m->world = world;
        m->timeout = limit(timeout_s);
        m->messages.reserve(2 * (size_t)world);
        m->device = std::make_shared<gloo::transport::tcp::Device>(listening_at(address));
        m->context = m->device->createContext(rank, world);
        m->context->setTimeout(std::max(m->timeout / connect_factor, milliseconds(1)));
        size_t stride = 0;
        for (int r = 0; r < world; r++) {
            if (r == rank)
                continue;
            auto bytes = m->context->createPair(r)->address().bytes();
            stride = bytes.size();
            m->block.resize((size_t)world * stride);
            std::copy(bytes.begin(), bytes.end(), m->block.begin() + (size_t)r * stride);
        }
        *block = m->block.data();
        *block_bytes = m->block.size();
        *out = m.release();
        return nullptr;
    } catch (const std::bad_alloc &) {
        return err_no_memory();
    } catch (const std::exception &e) {
        return err_new(ERR_INVALID, "communicator \"%s\": cannot listen at address \"%s\": %s",
                       name, address, reason(e));
    }
}

struct err *gloo_mesh_connect(struct gloo_mesh *m, const void *const *blocks)
{
    int peer = 0;
    return guarded(m, &peer, [&](steady::time_point) {
        size_t stride = m->block.size() / (size_t)m->world;
        for (peer = 0; peer < m->world; peer++) {
            if (peer == m->rank)
                continue;
            const char *theirs = (const char *)blocks[peer] + (size_t)m->rank * stride;
            m->context->getPair(peer)->connect(std::vector<char>(theirs, theirs + stride));
        }
        m->watcher = std::thread([m] {
            try {
                keep_watch(m);
            } catch (const std::exception &) {
                /* no memory: a lost rank is then noticed by the time limit */
            }
        });
    });
}

struct err *gloo_mesh_exchange(struct gloo_mesh *m, const struct gloo_transfer *transfers,
                               bool empty_too)
{
    int peer = m->rank;
    m->slot++;
    struct err *e = guarded(m, &peer, [&](steady::time_point deadline) {
        /* Each rank begins with its neighbour, so that not all of them write to the same one. */
        for (int i = 1; i < m->world; i++) {
            peer = (m->rank + m->world - i) % m->world;
            if (transfers[peer].recv_bytes || empty_too)
                post(m, peer, true, transfers[peer].recv, transfers[peer].recv_bytes);
        }
        for (int i = 1; i < m->world; i++) {
            peer = (m->rank + i) % m->world;
            if (transfers[peer].send_bytes || empty_too)
                post(m, peer, false, const_cast<void *>(transfers[peer].send),
                     transfers[peer].send_bytes);
        }
        for (auto &message : m->messages) {
            peer = message.peer;
            await(message, deadline);
        }
    });
    if (e)
        for (int r = 0; r < m->world; r++)
            if (r != m->rank)
                m->context->getPair(r)->close();
    std::vector<Message> done;
    {
        std::lock_guard<std::mutex> lock(m->mutex);
        done.swap(m->messages);
        m->messages.reserve(2 * (size_t)m->world);
    }
    return e;
}

void gloo_mesh_destroy(struct gloo_mesh *m)
{
    if (!m)
        return;
    {
        std::lock_guard<std::mutex> lock(m->mutex);
        m->closing = true;
        if (m->watch)
            m->watch->abortWaitRecv();
    }
    if (m->watcher.joinable())
        m->watcher.join();
    delete m;
}
