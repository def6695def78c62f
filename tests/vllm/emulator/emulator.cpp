// Runs a Hopper kernel on a CPU, in an order as bad as the hardware might choose: each of its threads is a fiber, which
// goes on until it waits for something. The kernel is compiled unchanged; `sm90.cuh` and `hopper.cuh` beside this file
// stand in for its own, which alone know the instructions.
//
// From a seed follows the order of blocks and warps, when copies land, and when stores of one block become visible to
// others. Some warps stand still until nothing else moves: what works only because somebody is fast is found out.
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace emulator {

typedef uint32_t u32;
typedef uint64_t u64;

constexpr int WARP = 32, SHARED_BYTES = 232448, SHARED_AT = 1024, MEETINGS = 16;
// Not a power of two, so that the stacks' ends do not all fall into the same sets of a cache.
constexpr size_t STACK_BYTES = 48 * 1024 + 576;
constexpr u64 STACK_END = 0x5ca1ab1edeadbeef;
constexpr u32 ALL = 0xffffffff, MARK = 0xffffffff;
constexpr int STALLED_ROUNDS = 150, STUCK_ROUNDS = 6000, HELD = 0x7fffffff;

struct Index {
    unsigned x, y, z;
};

struct Block;
struct Warp;

struct Fiber {
    unsigned char* shared;
    Index thread, block_index;
    Block* block;
    Warp* warp;
    int lane;
    void* stack;
    u64* stack_end;
    u32 awaited, parity;   // a barrier
    const u32* looked_at;  // what is polled
};

// A store that only its thread sees until it is due.
struct Store {
    unsigned char* at;
    u32 words[4];
    int count, lane, due, thaws;
};

enum Kind { NONE, SHUFFLE, BALLOT, SYNC, MULTIPLY };

struct Warp {
    // Lanes that can run, or what they wait for.
    u32 running, polling, awaiting, collecting, meeting, ended;
    Fiber* fibers;
    bool frozen;
    std::vector<Store> stores;
    // What the lanes do together.
    Kind kind;
    u32 mask, arrived;
    u64 given[WARP], taken[WARP];
    int source[WARP];
    float* sums[WARP];
    u32 left[WARP][4], right;
    int count;
};

struct Meeting {
    int threads, arrived;
    std::vector<u32> waiting;
};

struct Copy {
    u32 to;
    const void* from;
    int bytes;
    u32 barrier;
    bool held;  // until nothing else moves
};

struct Block {
    int index, alive, period;
    unsigned char* shared;
    std::vector<Warp> warps;
    Meeting meetings[MEETINGS];
    std::vector<Copy> copies;
};

static Fiber* current;
static std::vector<Fiber> fibers;
static std::vector<Block> blocks;
static void* scheduler;
static const u64* arguments;
static std::string failure;
static int now, progressed, thawed;
static bool anything_held, anything_frozen, hold_copies;
static double held_marks, held_results, copies_land;
static std::vector<double> warps_run;
static void run_kernel();

static u64 random_state;
static u64 draw() {
    random_state ^= random_state << 13, random_state ^= random_state >> 7, random_state ^= random_state << 17;
    return random_state * 0x2545F4914F6CDD1Dull >> 11;
}
static bool chance(double share) { return (draw() & 0xffffff) < share * 0x1000000; }
template <class T>
static void shuffle(std::vector<T>& all) {
    for (size_t i = all.size(); i > 1; --i) std::swap(all[i - 1], all[draw() % i]);
}
static void progress() { progressed = now; }
static u32 bit(const Fiber& fiber) { return 1u << fiber.lane; }

// ---------------------------------------------------------------------------------------------------------- switching
// The registers that a call keeps go onto the stack, which becomes another.
extern "C" __attribute__((visibility("hidden"))) void switch_stacks(void** kept, void* to);
asm(R"(
.text
.globl switch_stacks
.hidden switch_stacks
switch_stacks:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");

static void leave() { switch_stacks(&current->stack, scheduler); }

// Only the scheduler's stack can be unwound.
static void fail(const std::string& what) {
    if (!current) throw std::runtime_error(what);
    failure = what + ", in block " + std::to_string(current->block->index) + " thread " +
              std::to_string(current->thread.x);
    leave();
}

static void resume(Fiber& fiber) {
    current = &fiber;
    switch_stacks(&scheduler, fiber.stack);
    current = nullptr;
    if (*fiber.stack_end != STACK_END) fail("a stack has overflowed");
    if (!failure.empty()) throw std::runtime_error(failure);
}

static void finish_collective(Warp& warp);

static void run_fiber() {
    run_kernel();
    Warp& warp = *current->warp;
    warp.ended |= bit(*current);
    --current->block->alive;
    progress();
    if (warp.kind != NONE) finish_collective(warp);
    leave();
}

// --------------------------------------------------------------------------------------------------- stores and loads
static void commit(const Store& store) {
    memcpy(store.at, store.words, 4 * store.count);
    progress();
}

template <class Ready>
static void commit_those(Warp& warp, Ready ready) {
    size_t kept = 0;
    for (const Store& store : warp.stores)
        if (ready(store)) commit(store);
        else warp.stores[kept++] = store;
    warp.stores.resize(kept);
}

static bool overlap(const Store& store, const void* at, int bytes) {
    return store.lane == current->lane && store.at < static_cast<const unsigned char*>(at) + bytes &&
           at < store.at + 4 * store.count;
}

static void store(void* at, const void* value, int count) {
    Store made = {static_cast<unsigned char*>(at), {}, count, current->lane, 0, 0};
    memcpy(made.words, value, 4 * count);
    if (u64(at) % (4 * count)) fail("a store is not aligned");
    const bool marks = std::count(made.words, made.words + count, MARK) == count;
    if (!marks && std::count(made.words, made.words + count, MARK)) fail("a mark is announced");
    made.due = now + 1 + draw() % (marks && chance(0.5) ? 3200 : chance(0.1) ? 160 : 16);
    if (chance(marks ? held_marks : held_results))
        made.due = HELD, made.thaws = draw() % (marks ? 20 : 2), anything_held = true;
    bool ordered = false;
    for (const Store& before : current->warp->stores)
        if (overlap(before, at, 4 * count)) {
            ordered = true;
            if (before.due > made.due) made.due = before.due, made.thaws = before.thaws;
        }
    if (!ordered && chance(0.3)) commit(made);
    else current->warp->stores.push_back(made);
}

static void load(void* value, const void* at, int bytes) {
    if (u64(at) % bytes) fail("a load is not aligned");
    memcpy(value, at, bytes);
    for (const Store& store : current->warp->stores)
        if (overlap(store, at, bytes))
            for (int i = 0; i < store.count; ++i) {
                const long offset = store.at + 4 * i - static_cast<const unsigned char*>(at);
                if (offset >= 0 && offset < bytes) memcpy(static_cast<char*>(value) + offset, &store.words[i], 4);
            }
}

// Others run before it looks.
static void look(void* value, const void* at, int bytes) {
    current->looked_at = static_cast<const u32*>(at);
    current->warp->polling |= bit(*current);
    leave();
    load(value, at, bytes);
}

static void show_writes() {
    commit_those(*current->warp, [](const Store& store) { return store.lane == current->lane; });
}

// ------------------------------------------------------------------------------------------------ barriers and copies
struct Barrier {
    u64 parity : 1, arrivals : 12, lacking : 12, begun : 9;
    int64_t bytes : 30;
};
static_assert(sizeof(Barrier) == 8, "as on the hardware");
constexpr u32 BEGUN = 0x1a5;

static void* place(Block& block, u32 at, int bytes) {
    if (at < u32(SHARED_AT) || at + bytes > u32(SHARED_AT + SHARED_BYTES)) fail("not in shared memory");
    return block.shared + at - SHARED_AT;
}

static Barrier& barrier_of(Block& block, u32 at) {
    Barrier& barrier = *static_cast<Barrier*>(place(block, at, sizeof(Barrier)));
    if (at % sizeof(Barrier) || barrier.begun != BEGUN) fail("no barrier has begun here");
    return barrier;
}

static void complete(Barrier& barrier) {
    if (barrier.lacking == 0 && barrier.bytes == 0) barrier.parity ^= 1, barrier.lacking = barrier.arrivals;
    progress();
}

static void begin_barrier(u32 at, u32 arrivals) {
    Barrier& barrier = *static_cast<Barrier*>(place(*current->block, at, sizeof(Barrier)));
    barrier = Barrier();
    barrier.arrivals = barrier.lacking = arrivals, barrier.begun = BEGUN;
}

static void arrive(u32 at, int bytes) {
    Barrier& barrier = barrier_of(*current->block, at);
    if (barrier.lacking == 0) fail("one arrival too many");
    if (barrier.bytes + bytes >= 1 << 20) fail("more bytes than a barrier counts");
    barrier.bytes += bytes, barrier.lacking -= 1;
    complete(barrier);
}

static void await(u32 at, u32 parity) {
    if (parity > 1) fail("no parity");
    if (barrier_of(*current->block, at).parity != parity) return;
    current->awaited = at, current->parity = parity;
    current->warp->awaiting |= bit(*current);
    leave();
}

static bool has_passed(u32 at, u32 parity) {
    current->looked_at = nullptr;
    current->warp->polling |= bit(*current);
    leave();
    return barrier_of(*current->block, at).parity != parity;
}

static void begin_copy(u32 to, const void* from, int bytes, u32 barrier) {
    if (bytes <= 0 || bytes % 16 || to % 16 || u64(from) % 16) fail("a copy is not aligned");
    place(*current->block, to, bytes), barrier_of(*current->block, barrier);
    const bool held = hold_copies && chance(bytes < 4096 ? 0.05 : 0.001);  // most are large
    anything_held |= held;
    current->block->copies.push_back({to, from, bytes, barrier, held});
    progress();
}

static void land_copies(Block& block) {
    shuffle(block.copies);
    for (size_t i = block.copies.size(); i-- > 0;) {
        if (block.copies[i].held || !chance(copies_land)) continue;
        const Copy copy = block.copies[i];
        block.copies.erase(block.copies.begin() + i);
        memcpy(place(block, copy.to, copy.bytes), copy.from, copy.bytes);
        Barrier& barrier = barrier_of(block, copy.barrier);
        barrier.bytes -= copy.bytes;
        complete(barrier);
    }
}

static void meet(int which, int threads) {
    Block& block = *current->block;
    if (which < 0 || which >= MEETINGS || threads % WARP) fail("threads cannot meet so");
    Meeting& meeting = block.meetings[which];
    if (meeting.arrived && meeting.threads != threads) fail("threads disagree on how many meet");
    meeting.threads = threads, meeting.waiting.resize(block.warps.size());
    meeting.waiting[current->thread.x / WARP] |= bit(*current);
    current->warp->meeting |= bit(*current);
    if (++meeting.arrived == threads) {
        for (size_t i = 0; i < block.warps.size(); ++i) {
            block.warps[i].meeting &= ~meeting.waiting[i], block.warps[i].running |= meeting.waiting[i];
            meeting.waiting[i] = 0;
        }
        meeting.arrived = 0;
        progress();
    }
    leave();
}

// ------------------------------------------------------------------------------------------------ what warps do as one
static float widened(u32 half) {
    const u32 bits = half << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

// sums [16, COLUMNS] += left [16, 16] · right [COLUMNS, 16]ᵀ, of a warp's rows. Rows of right have 128 bytes, of which
// 16-byte pieces are exchanged as the tensor cores expect.
template <int COLUMNS>
static void multiply(Block& block, Warp& warp) {
    static float left[16][16], right[16][COLUMNS], sums[16][COLUMNS];
    for (int lane = 0; lane < WARP; ++lane) {
        for (int i = 0; i < 4; ++i) {
            float* two = &left[lane / 4 + i % 2 * 8][lane % 4 * 2 + i / 2 * 8];
            two[0] = widened(warp.left[lane][i] & 0xffff), two[1] = widened(warp.left[lane][i] >> 16);
        }
        for (int i = 0; i < COLUMNS / 2; ++i)
            sums[lane / 4 + i / 2 % 2 * 8][i / 4 * 8 + lane % 4 * 2 + i % 2] = warp.sums[lane][i];
    }
    for (int column = 0; column < COLUMNS; ++column)
        for (int k = 0; k < 16; ++k) {
            u32 at = ((warp.right & 0x3fff) << 4) + column * 128 + 2 * k;
            at ^= (at >> 7 & 7) << 4;
            unsigned short half;
            memcpy(&half, place(block, at, 2), 2);
            right[k][column] = widened(half);
        }
    for (int row = 0; row < 16; ++row)
        for (int k = 0; k < 16; ++k)
            for (int column = 0; column < COLUMNS; ++column) sums[row][column] += left[row][k] * right[k][column];
    for (int lane = 0; lane < WARP; ++lane)
        for (int i = 0; i < COLUMNS / 2; ++i)
            warp.sums[lane][i] = sums[lane / 4 + i / 2 % 2 * 8][i / 4 * 8 + lane % 4 * 2 + i % 2];
    progress();
}

static void multiply(Block& block, Warp& warp) {
    if (warp.arrived != ALL) fail("a warp multiplies without all of its lanes");
    switch (2 * warp.count) {
        case 16: return multiply<16>(block, warp);
        case 32: return multiply<32>(block, warp);
        case 48: return multiply<48>(block, warp);
        case 64: return multiply<64>(block, warp);
        default: fail("no instruction has so many columns");
    }
}

static void finish_collective(Warp& warp) {
    if (((warp.arrived | warp.ended) & warp.mask) != warp.mask) return;
    u32 votes = 0;
    for (int lane = 0; lane < WARP; ++lane)
        if (warp.arrived >> lane & 1) votes |= u32(warp.given[lane] != 0) << lane;
    for (int lane = 0; lane < WARP; ++lane) {
        if (!(warp.arrived >> lane & 1)) continue;
        if (warp.kind == SHUFFLE && !(warp.arrived >> warp.source[lane] & 1)) fail("a lane is read that takes no part");
        warp.taken[lane] = warp.kind == SHUFFLE ? warp.given[warp.source[lane]] : votes;
    }
    if (warp.kind == MULTIPLY) multiply(*warp.fibers->block, warp);
    warp.collecting &= ~warp.arrived, warp.running |= warp.arrived;
    warp.kind = NONE, warp.arrived = 0;
}

static u64 collect(Kind kind, u32 mask, u64 value, int source) {
    Warp& warp = *current->warp;
    const int lane = current->lane;
    if (warp.kind == NONE) warp.kind = kind, warp.mask = mask;
    if (warp.kind != kind || warp.mask != mask || !(mask >> lane & 1)) fail("lanes of a warp do different things");
    warp.given[lane] = value, warp.source[lane] = source;
    warp.arrived |= 1u << lane, warp.collecting |= 1u << lane;
    finish_collective(warp);
    if (warp.collecting >> lane & 1) leave();
    else warp.running &= ~(1u << lane);  // the last goes on at once
    return warp.taken[lane];
}

static void multiply(float* sums, int count, const u32* left, u32 right) {
    Warp& warp = *current->warp;
    if (warp.arrived && (warp.right != right || warp.count != count)) fail("lanes multiply different things");
    warp.right = right, warp.count = count, warp.sums[current->lane] = sums;
    memcpy(warp.left[current->lane], left, sizeof warp.left[0]);
    collect(MULTIPLY, ALL, 0, 0);
}

// --------------------------------------------------------------------------------------------------------- scheduling
static void visit(Block& block, Warp& warp) {
    if (!warp.running && !warp.awaiting && warp.polling) {
        // Where a mark still stands it is seldom looked again: only time would pass.
        const u32* at = warp.fibers[__builtin_ctz(warp.polling)].looked_at;
        if (at && *at == MARK && draw() % 8) return;
    }
    warp.running |= warp.polling, warp.polling = 0;
    for (int lane = 0; lane < WARP; ++lane) {
        const Fiber& fiber = warp.fibers[lane];
        if (warp.awaiting >> lane & 1 && barrier_of(block, fiber.awaited).parity != fiber.parity)
            warp.awaiting &= ~(1u << lane), warp.running |= 1u << lane;
    }
    const int first = draw() % WARP;
    while (warp.running) {
        const u32 turned = first ? warp.running >> first | warp.running << (WARP - first) : warp.running;
        const int lane = (__builtin_ctz(turned) + first) % WARP;
        warp.running &= ~(1u << lane);
        resume(warp.fibers[lane]);
    }
}

// For some time copies, blocks and warps are as fast as this.
static void choose_speeds() {
    const double shares[] = {1, 0.5, 0.1, 0.02};
    const int periods[] = {2, 4, 16, 64};
    const double slow_blocks[] = {0, 0, 0.02, 0.2, 0.5};
    copies_land = shares[draw() % 4];
    const double slow = slow_blocks[draw() % 5];
    for (Block& block : blocks) block.period = chance(slow) ? periods[draw() % 4] : 1;
    for (double& share : warps_run) share = chance(0.6) ? 1 : chance(0.5) ? 0.5 : 0.1;
}

// A few warps, whole blocks, or the warps of one task in many blocks stand still.
static void freeze() {
    if (anything_frozen || now - progressed > STALLED_ROUNDS || chance(0.4)) return;
    anything_frozen = true;
    // The last four warps have tasks of their own.
    const int task = chance(0.5) ? warps_run.size() - 1 - draw() % 4 : draw() % warps_run.size(), kind = draw() % 4;
    const double shares[] = {0.02, 0.02, 1, 0.5};
    for (Block& block : blocks)
        if (chance(shares[kind]))
            for (int i = 0; i < int(block.warps.size()); ++i) block.warps[i].frozen = kind == 1 || i == task;
}

static void thaw() {
    const double share = chance(0.5) ? 1 : 0.1;
    anything_held = anything_frozen = false;
    for (Block& block : blocks) {
        for (Copy& copy : block.copies) {
            copy.held = copy.held && chance(0.5);
            anything_held |= copy.held;
        }
        for (Warp& warp : block.warps) {
            warp.frozen = warp.frozen && !chance(share);
            anything_frozen |= warp.frozen && warp.ended != ALL;
            for (Store& store : warp.stores) {
                if (store.due == HELD && store.thaws-- <= 0) store.due = now;
                anything_held |= store.due == HELD;
            }
        }
    }
    thawed = now;
}

static bool run_round(std::vector<int>& order, std::vector<int>& warp_order) {
    bool alive = false;
    shuffle(order);
    for (int index : order) {
        Block& block = blocks[index];
        for (Warp& warp : block.warps) commit_those(warp, [](const Store& store) { return store.due <= now; });
        land_copies(block);
        if (!block.alive && !block.copies.empty()) fail("a block has ended before its copies landed");
        alive |= block.alive > 0;
        if (!block.alive || draw() % block.period) continue;
        shuffle(warp_order);
        for (int each : warp_order) {
            Warp& warp = block.warps[each];
            const bool waiting = warp.running | warp.polling | warp.awaiting;
            if (waiting && !warp.frozen && chance(warps_run[each])) visit(block, warp);
        }
    }
    return alive;
}

static void run_all() {
    std::vector<int> order(blocks.size()), warp_order(warps_run.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    for (size_t i = 0; i < warp_order.size(); ++i) warp_order[i] = i;
    int speeds_end = 0;
    do {
        if (++now >= speeds_end) choose_speeds(), freeze(), speeds_end = now + 20 + draw() % 300;
        if ((anything_held || anything_frozen) && now - std::max(progressed, thawed) > STALLED_ROUNDS) thaw();
        if (now - progressed > STUCK_ROUNDS) fail("nothing moves any more");
    } while (run_round(order, warp_order));
    for (Block& block : blocks)
        for (Warp& warp : block.warps) commit_those(warp, [](const Store&) { return true; });
}

// What the warps of the first blocks that have not ended wait for.
static std::string report() {
    std::string text;
    int shown = 0;
    for (const Block& block : blocks) {
        if (!block.alive || ++shown > 2) continue;
        text += "\nblock " + std::to_string(block.index) + ", " + std::to_string(block.copies.size()) + " copies";
        for (size_t i = 0; i < block.warps.size(); ++i) {
            const Warp& warp = block.warps[i];
            const std::pair<const char*, u32> states[] = {{"look", warp.polling},         {"meet", warp.meeting},
                                                          {"await a barrier", warp.awaiting}, {"ended", warp.ended},
                                                          {"wait for other lanes", warp.collecting}};
            text += "\n  warp " + std::to_string(i) + ":";
            for (const auto& state : states)
                if (state.second) text += " " + std::to_string(__builtin_popcount(state.second)) + " " + state.first;
            if (warp.awaiting) {
                const int offset = warp.fibers[__builtin_ctz(warp.awaiting)].awaited - SHARED_AT;
                text += ", at " + std::to_string(offset) + " of shared memory";
            }
        }
    }
    return text;
}

static unsigned char* mapped(size_t bytes) {
    void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) throw std::runtime_error("no memory for the stacks");
    madvise(at, bytes, MADV_NOHUGEPAGE);
    return static_cast<unsigned char*>(at);
}

static void begin_fiber(Fiber& fiber, Block& block, int thread, unsigned char* stack) {
    fiber.shared = block.shared, fiber.thread = {u32(thread), 0, 0}, fiber.block_index = {u32(block.index), 0, 0};
    fiber.block = &block, fiber.warp = &block.warps[thread / WARP], fiber.lane = thread % WARP;
    fiber.stack_end = reinterpret_cast<u64*>(stack);
    *fiber.stack_end = STACK_END;
    u64* top = reinterpret_cast<u64*>(stack + STACK_BYTES);
    *--top = 0;  // where a function that was called would return to
    *--top = reinterpret_cast<u64>(&run_fiber);
    fiber.stack = top - 6;
}

static void begin(int count, int threads, unsigned char* stacks, unsigned char* memory) {
    fibers.assign(size_t(count) * threads, Fiber());
    blocks.assign(count, Block());
    warps_run.assign(threads / WARP, 1);
    for (int i = 0; i < count; ++i) {
        Block& block = blocks[i];
        block.index = i, block.alive = threads, block.period = 1, block.shared = memory + size_t(i) * SHARED_BYTES;
        memset(block.shared, 0x7f, SHARED_BYTES);  // large numbers
        block.warps.assign(threads / WARP, Warp());
        for (int thread = 0; thread < threads; ++thread) {
            const size_t number = size_t(i) * threads + thread;
            begin_fiber(fibers[number], block, thread, stacks + number * STACK_BYTES);
        }
        for (size_t warp = 0; warp < block.warps.size(); ++warp) {
            block.warps[warp].running = ALL;
            block.warps[warp].fibers = &fibers[size_t(i) * threads + warp * WARP];
        }
    }
}

}  // namespace emulator

#include KERNEL_SOURCE

namespace emulator {

template <class T>
static T argument(int index) {
    T value;
    memcpy(&value, arguments + index, sizeof value);
    return value;
}

template <class... T, size_t... INDICES>
static void call(void (*kernel)(T...), std::index_sequence<INDICES...>) {
    kernel(argument<T>(INDICES)...);
}

template <class... T>
static void call(void (*kernel)(T...)) {
    call(kernel, std::index_sequence_for<T...>());
}

static void run_kernel() { call(KERNEL_NAME); }

// Returns what went wrong, or nothing. Each argument has eight bytes.
extern "C" __attribute__((visibility("default"))) const char* launch(int count, int threads, const u64* given,
                                                                     u64 seed) {
    static std::string message;
    const size_t stack_bytes = size_t(count) * threads * STACK_BYTES, shared_bytes = size_t(count) * SHARED_BYTES;
    unsigned char *stacks = mapped(stack_bytes), *memory = mapped(shared_bytes);
    arguments = given, failure.clear(), message.clear(), current = nullptr;
    random_state = (seed + 1) * 0x9E3779B97F4A7C15ull | 1;
    for (int i = 0; i < 10; ++i) draw();
    const double shares[] = {0, 0.0001, 0.001, 0.3};
    held_marks = shares[draw() % 4], held_results = shares[draw() % 3], hold_copies = chance(0.5);
    now = progressed = thawed = 0, anything_held = anything_frozen = false;
    begin(count, threads, stacks, memory);
    try {
        run_all();
    } catch (const std::runtime_error& error) {
        message = error.what() + report();
    }
    munmap(stacks, stack_bytes), munmap(memory, shared_bytes);
    return message.c_str();
}

}  // namespace emulator
