// One-sided operations of a block: copy and fold ranges, raise and await counters, send and receive packets.
//
// Invariant: an element's sources are all read by the thread that writes it, before it writes, so that a target may be
// exactly a source. No range is touched outside its bytes. Accesses are of 16 bytes wherever all ranges of a fold
// agree modulo 16; at any other alignment elements or bytes are moved one by one. Absent: plans and ranks.

#ifndef CONSORT_DEVICE_CUH
#define CONSORT_DEVICE_CUH

#include "plan.h"

#ifdef CONSORT_HOST
#include "host.cuh"
#else
#include "gpu.cuh"
#endif

#include "arithmetic.cuh"

namespace consort {

// The shared memory of a block, the same for every kernel.
struct Shared {
    // Two sets that take turns: while some threads still read one, others may fill the next.
    u64 place[2][max_places];
    u32 stop[2][max_ranks];
    u64 program;
    u32 first_block;
    u32 blocks;
    u32 record_bytes;
};

CONSORT_SHARED(Shared)

// A part of `0..bytes`: instance `index` of `count`. Parts begin at multiples of the grain.
struct Part {
    u64 start;
    u64 bytes;
};

// In grains, fewer than 2^32: a 64-bit division is long.
CONSORT_FN Part part_of(u64 bytes, u32 index, u32 count) {
    u32 grains = u32((bytes + grain - 1) / grain);
    u64 unit = u64((grains + count - 1) / count) * grain;
    u64 start = index * unit;
    start = start < bytes ? start : bytes;
    u64 left = bytes - start;
    return {start, left < unit ? left : unit};
}

// A fold of ranges: a set of places has the targets' addresses, then the sources'.
struct Ranges {
    const u64 *place;
    u64 bytes;
    u32 targets;
    u32 sources;
    u32 raw;
    bool finish;
};

// The low bits in which the addresses of all ranges agree.
struct Alignment {
    // Bits in which any two of them differ.
    u64 differing;
    // Bits that any of them has.
    u64 present;
};

CONSORT_FN Alignment alignment_of(const Ranges &ranges) {
    Alignment alignment = {0, 0};
    u64 first = ranges.place[0];
    CONSORT_ROLLED
    for (u32 i = 0; i < ranges.targets + ranges.sources; i++) {
        alignment.differing |= ranges.place[i] ^ first;
        alignment.present |= ranges.place[i];
    }
    return alignment;
}

CONSORT_FN u64 smaller_of(u64 left, u64 right) { return left < right ? left : right; }

// A range cut into tiles, one for a warp at a time: `depth` rows of a word for each thread.
template <u32 bytes, u32 depth> struct Tiles {
    enum : u32 { row = warp_threads * bytes, tile = row * depth };

    // Position of this thread's first word in a range that begins at 0, and distance to its next tile.
    CONSORT_FN u64 first() { return u64(thread() / warp_threads) * tile + thread() % warp_threads * bytes; }
    CONSORT_FN u64 step() { return u64(threads() / warp_threads) * tile; }
};

// Begin and end of the whole tiles of aligned words in a range.
struct Cut {
    u64 head;
    u64 tail;

    template <u32 bytes, u32 depth> CONSORT_FN Cut of(u64 address, u64 length) {
        constexpr u32 tile = Tiles<bytes, depth>::tile;
        u64 head = smaller_of((0 - address) & (bytes - 1), length);
        return {head, head + (length - head) / tile * tile};
    }
};

// Copies `start..end` of the source to all targets, in whole tiles.
template <u32 bytes, u32 depth> CONSORT_FN void copy_tiles(const Ranges &ranges, u64 start, u64 end) {
    typedef Tiles<bytes, depth> Tiles;
    CONSORT_ROLLED
    for (u64 at = start + Tiles::first(); at < end; at += Tiles::step()) {
        Word<bytes> word[depth];
        u64 source = ranges.place[ranges.targets] + at;
        CONSORT_UNROLL
        for (u32 d = 0; d < depth; d++) {
            load(source + d * Tiles::row, word[d]);
        }
        CONSORT_ROLLED
        for (u32 target = 0; target < ranges.targets; target++) {
            u64 place = ranges.place[target] + at;
            CONSORT_UNROLL
            for (u32 d = 0; d < depth; d++) {
                store(place + d * Tiles::row, word[d]);
            }
        }
    }
}

// Copies the first source to all targets, bytes as they are.
CONSORT_FN void copy_range(const Ranges &ranges) {
    u64 differing = alignment_of(ranges).differing;
    Cut cut = {0, 0};
    if ((differing & 15) == 0) {
        cut = Cut::of<16, 4>(ranges.place[0], ranges.bytes);
        copy_tiles<16, 4>(ranges, cut.head, cut.tail);
        u64 words = cut.tail + (ranges.bytes - cut.tail) / 16 * 16;
        copy_tiles<16, 1>(ranges, cut.tail, words);
        cut.tail = words;
    } else if ((differing & 3) == 0) {
        cut = Cut::of<4, 4>(ranges.place[0], ranges.bytes);
        copy_tiles<4, 4>(ranges, cut.head, cut.tail);
    }
    CONSORT_ROLLED
    for (u32 side = 0; side < 2; side++) {
        copy_tiles<1, 1>(ranges, side == 0 ? 0 : cut.tail, side == 0 ? cut.head : ranges.bytes);
    }
}

// Element `index` of a word.
template <class T, u32 bytes> CONSORT_FN typename T::Bits element(const Word<bytes> &word, u32 index) {
    constexpr u32 size = sizeof(typename T::Bits);
    if constexpr (size == 8) {
        return word.part[index * 2] | u64(word.part[index * 2 + 1]) << 32;
    } else {
        return typename T::Bits(word.part[index * size / 4] >> (index * size % 4 * 8));
    }
}

// Puts an element into a word whose bits there are zero.
template <class T, u32 bytes> CONSORT_FN void put_element(Word<bytes> &word, u32 index, typename T::Bits bits) {
    constexpr u32 size = sizeof(typename T::Bits);
    if constexpr (size == 8) {
        word.part[index * 2] = u32(bits);
        word.part[index * 2 + 1] = u32(bits >> 32);
    } else {
        word.part[index * size / 4] |= u32(bits) << (index * size % 4 * 8);
    }
}

// A word, at any address unless it is marked as aligned.
template <u32 bytes, bool is_aligned> CONSORT_FN void load_word(u64 address, Word<bytes> &word) {
    if (is_aligned || (address & (bytes - 1)) == 0) {
        load(address, word);
    } else {
        word = Word<bytes>();
        CONSORT_UNROLL
        for (u32 i = 0; i < bytes; i++) {
            Word<1> byte;
            load(address + i, byte);
            word.part[i / 4] |= byte.part[0] << (i % 4 * 8);
        }
    }
}

template <u32 bytes, bool is_aligned> CONSORT_FN void store_word(u64 address, const Word<bytes> &word) {
    if (is_aligned || (address & (bytes - 1)) == 0) {
        store(address, word);
    } else {
        CONSORT_UNROLL
        for (u32 i = 0; i < bytes; i++) {
            store(address + i, Word<1>{{word.part[i / 4] >> (i % 4 * 8) & 0xffu}});
        }
    }
}

// Folds `start..end` of the sources into all targets, in whole tiles. Loads of the next source may be under way while
// one is folded.
template <class T, class Op, u32 bytes, u32 depth, bool is_aligned, bool is_ahead, bool may_finish>
CONSORT_FN void fold_tiles(const Ranges &ranges, const Factors &factors, u64 start, u64 end) {
    typedef typename T::Wide Wide;
    typedef Tiles<bytes, depth> Tiles;
    constexpr u32 elements = bytes / sizeof(typename T::Bits);
    CONSORT_ROLLED
    for (u64 at = start + Tiles::first(); at < end; at += Tiles::step()) {
        Wide folded[depth][elements] = {};
        Word<bytes> word[depth];
        Word<bytes> next[depth] = {};
        if (is_ahead) {
            u64 source = ranges.place[ranges.targets] + at;
            CONSORT_UNROLL
            for (u32 d = 0; d < depth; d++) {
                load_word<bytes, is_aligned>(source + d * Tiles::row, next[d]);
            }
        }
        // The index is opaque to the compiler, which would otherwise write the loop's body twice.
        const u32 first = opaque(0);
        CONSORT_ROLLED
        for (u32 s = 0; s < ranges.sources; s++) {
            CONSORT_UNROLL
            for (u32 d = 0; d < depth; d++) {
                word[d] = next[d];
            }
            u32 loaded = is_ahead ? s + 1 : s;
            if (!is_ahead || loaded < ranges.sources) {
                u64 source = ranges.place[ranges.targets + loaded] + at;
                CONSORT_UNROLL
                for (u32 d = 0; d < depth; d++) {
                    load_word<bytes, is_aligned>(source + d * Tiles::row, is_ahead ? next[d] : word[d]);
                }
            }
            bool is_raw = Op::is_sum && (ranges.raw >> s & 1) != 0;
            CONSORT_UNROLL
            for (u32 d = 0; d < depth; d++) {
                Wide value[elements];
                CONSORT_UNROLL
                for (u32 e = 0; e < elements; e++) {
                    value[e] = T::widen(element<T>(word[d], e));
                }
                if (is_raw) {
                    const Wide factor = T::factor(factors);
                    CONSORT_UNROLL
                    for (u32 e = 0; e < elements; e++) {
                        value[e] = scaled<T>(value[e], factor);
                    }
                }
                CONSORT_UNROLL
                for (u32 e = 0; e < elements; e++) {
                    folded[d][e] = s == first ? value[e] : Op::template combine<T>(folded[d][e], value[e]);
                }
            }
        }
        CONSORT_UNROLL
        for (u32 d = 0; d < depth; d++) {
            word[d] = Word<bytes>();
            CONSORT_UNROLL
            for (u32 e = 0; e < elements; e++) {
                Wide wide = folded[d][e];
                if constexpr (may_finish) {
                    wide = ranges.finish ? T::divide(wide, factors.divisor) : wide;
                }
                put_element<T>(word[d], e, T::narrow(wide));
            }
        }
        CONSORT_ROLLED
        for (u32 target = 0; target < ranges.targets; target++) {
            u64 place = ranges.place[target] + at;
            CONSORT_UNROLL
            for (u32 d = 0; d < depth; d++) {
                store_word<bytes, is_aligned>(place + d * Tiles::row, word[d]);
            }
        }
    }
}

// Folds ranges of whole elements. One source that is neither scaled nor divided is copied, every bit of it.
template <class T, class Op> CONSORT_FN void fold_range(const Ranges &ranges, const Factors &factors) {
    if constexpr (Op::is_copy) {
        copy_range(ranges);
    } else {
        constexpr u32 size = sizeof(typename T::Bits);
        // Words of a thread at a time; with the loads of the next source twice as many are under way. Floats of eight
        // bits have more arithmetic than traffic.
        constexpr u32 depth = size == 1 && !T::divides ? 1 : 2;
        constexpr bool may_finish = Op::is_sum && T::divides;
        bool finish = may_finish && ranges.finish;
        bool scale = Op::is_sum && (ranges.raw & 1) != 0;
        if (ranges.sources == 1 && !scale && !finish) {
            return copy_range(ranges);
        }
        Alignment alignment = alignment_of(ranges);
        Cut cut = {0, 0};
        // A division takes much code, and means of integers need no speed.
        if (!finish && (alignment.present & (size - 1)) == 0) {
            if ((alignment.differing & 15) == 0) {
                cut = Cut::of<16, depth>(ranges.place[0], ranges.bytes);
                fold_tiles<T, Op, 16, depth, true, true, false>(ranges, factors, cut.head, cut.tail);
            } else {
                cut = Cut::of<size, 4>(ranges.place[0], ranges.bytes);
                fold_tiles<T, Op, size, 4, true, false, false>(ranges, factors, cut.head, cut.tail);
            }
        }
        CONSORT_ROLLED
        for (u32 side = 0; side < 2; side++) {
            u64 start = side == 0 ? 0 : cut.tail;
            u64 end = side == 0 ? cut.head : ranges.bytes;
            fold_tiles<T, Op, size, 1, false, false, may_finish>(ranges, factors, start, end);
        }
    }
}

// Number of looks at a counter between two looks at the abort word.
constexpr u32 looks_between_polls = 64;

CONSORT_FN bool has_reached(u64 counter, u64 value) { return i64(load_acquire(counter) - value) >= 0; }

CONSORT_FN bool is_aborted(u64 abort) { return abort != 0 && load_relaxed(abort) != 0; }

// Ends a kernel; called by all threads of the block. The last block of `count` signals the end to the host.
CONSORT_FN void end_block(u64 left, u64 done, u64 sequence, u32 count) {
    barrier();
    if (thread() == 0 && done != 0 && fetch_add(left, 1) == count - 1) {
        store(left, Word<4>{{0}});
        store_release(done, sequence);
    }
}

} // namespace consort

#endif
