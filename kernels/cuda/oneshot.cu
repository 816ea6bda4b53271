// One-shot all-reduce in packets (protocol LL): every rank sends its contribution to all others and folds what
// arrives.
//
// Invariant: a packet is eight bytes, four of data and four of flag, stored and loaded in one piece. A thread that
// reads the flag of this call has the data, without a fence or a counter. Contributions are folded in the order of
// ranks, so all ranks have the same bits. Absent: which set of packets a call uses; calls take turns with two.

#include "kernels.cuh"

namespace consort {

// Bytes that a thread handles at a time, in two packets.
constexpr u32 unit_bytes = 8;

// At most `count` bytes at any address; the others are zero.
CONSORT_FN u64 load_unit(u64 address, u32 count) {
    Word<8> word = {};
    if ((address & 7) == 0 && count == unit_bytes) {
        load(address, word);
    } else {
        CONSORT_UNROLL
        for (u32 i = 0; i < unit_bytes; i++) {
            if (i < count) {
                Word<1> byte;
                load(address + i, byte);
                word.part[i / 4] |= byte.part[0] << (i % 4 * 8);
            }
        }
    }
    return word.part[0] | u64(word.part[1]) << 32;
}

CONSORT_FN void store_unit(u64 address, u32 count, u64 unit) {
    Word<8> word = {{u32(unit), u32(unit >> 32)}};
    if ((address & 7) == 0 && count == unit_bytes) {
        store(address, word);
    } else {
        CONSORT_UNROLL
        for (u32 i = 0; i < unit_bytes; i++) {
            if (i < count) {
                store(address + i, Word<1>{{word.part[i / 4] >> (i % 4 * 8) & 0xffu}});
            }
        }
    }
}

// Loads the two packets at an address when both have this call's flag; false when the call is aborted.
CONSORT_FN bool receive(u64 address, u32 flag, u64 abort, u64 &unit) {
    u64 first;
    u64 second;
    u32 looks = 0;
    CONSORT_ROLLED
    for (;;) {
        load_pair(address, first, second);
        if (u32(first >> 32) == flag && u32(second >> 32) == flag) {
            break;
        }
        looks++;
        if (looks % looks_between_polls == 0 && is_aborted(abort)) {
            return false;
        }
        relax();
    }
    unit = u32(first) | u64(u32(second)) << 32;
    return true;
}

template <class T> CONSORT_FN typename T::Bits element_of(u64 unit, u32 index) {
    return typename T::Bits(unit >> (index * sizeof(typename T::Bits) * 8));
}

// This rank's contribution as it is sent.
template <class T, class Op> CONSORT_FN u64 contribution(const OneShot &call, u64 unit) {
    constexpr u32 size = sizeof(typename T::Bits);
    if (!Op::is_sum || (call.raw >> call.rank & 1) == 0) {
        return unit;
    }
    typename T::Wide factor = T::factor(call.factors);
    u64 sent = 0;
    CONSORT_UNROLL
    for (u32 e = 0; e < unit_bytes / size; e++) {
        typename T::Wide wide = scaled<T>(T::widen(element_of<T>(unit, e)), factor);
        sent |= u64(T::narrow(wide)) << (e * size * 8);
    }
    return sent;
}

template <class T, class Op> CONSORT_FN void all_reduce_once(const OneShot &call) {
    constexpr u32 size = sizeof(typename T::Bits);
    constexpr u32 elements = unit_bytes / size;
    constexpr bool may_finish = Op::is_sum && T::divides;
    u64 units = (call.bytes + unit_bytes - 1) / unit_bytes;
    u64 stride = u64(blocks()) * threads();
    u64 first = u64(block()) * threads() + thread();
    u64 flag = u64(call.flag) << 32;
    CONSORT_ROLLED
    for (u64 at = first; at < units; at += stride) {
        u32 count = u32(smaller_of(call.bytes - at * unit_bytes, unit_bytes));
        u64 unit = contribution<T, Op>(call, load_unit(call.input + at * unit_bytes, count));
        u64 place = call.rank * call.packet_stride + at * 16;
        CONSORT_ROLLED
        for (u32 peer = 0; peer < call.ranks; peer++) {
            if (peer != call.rank) {
                store_pair(call.peers[peer] + place, flag | u32(unit), flag | unit >> 32);
            }
        }
    }
    bool is_alive = true;
    CONSORT_ROLLED
    for (u64 at = first; at < units && is_alive; at += stride) {
        u32 count = u32(smaller_of(call.bytes - at * unit_bytes, unit_bytes));
        u64 own = contribution<T, Op>(call, load_unit(call.input + at * unit_bytes, count));
        typename T::Wide folded[elements] = {};
        u64 unit = own;
        CONSORT_ROLLED
        for (u32 rank = 0; rank < call.ranks && is_alive; rank++) {
            unit = own;
            if (rank != call.rank) {
                is_alive = receive(call.packets + rank * call.packet_stride + at * 16, call.flag, call.abort, unit);
            }
            CONSORT_UNROLL
            for (u32 e = 0; e < elements; e++) {
                typename T::Wide wide = T::widen(element_of<T>(unit, e));
                folded[e] = rank == 0 ? wide : Op::template combine<T>(folded[e], wide);
            }
        }
        // The contribution of a job with one rank is copied bit for bit, unless it is scaled or divided.
        bool is_copy = call.ranks == 1 && !(may_finish && call.finish != 0);
        if (!is_copy) {
            unit = 0;
            CONSORT_UNROLL
            for (u32 e = 0; e < elements; e++) {
                typename T::Wide wide = folded[e];
                if constexpr (may_finish) {
                    wide = call.finish != 0 ? T::divide(wide, call.factors.divisor) : wide;
                }
                unit |= u64(T::narrow(wide)) << (e * size * 8);
            }
        }
        if (is_alive) {
            store_unit(call.output + at * unit_bytes, count, unit);
        }
    }
    end_block(call.left, call.done, call.sequence, blocks());
}

} // namespace consort

#define CONSORT_ONE_SHOT(type, op)                                                                                  \
    CONSORT_ENTRY(CONSORT_JOIN(oneshot, type, op), consort::OneShot) {                                              \
        using namespace consort;                                                                                    \
        all_reduce_once<CONSORT_CLASS(type), op_##op>(parameter);                                                   \
    }
CONSORT_KERNELS(CONSORT_ONE_SHOT)
