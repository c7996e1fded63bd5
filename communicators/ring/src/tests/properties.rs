//! Rings on arbitrary memory.

use proptest::prelude::*;

use crate::fuzzing::fuzz_ring;

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// No memory makes a consumer, a producer or a layout check go outside
    /// the ring, panic, or run forever.
    #[test]
    fn scribbled_memory_is_harmless(data in prop::collection::vec(any::<u8>(), 0..3000)) {
        fuzz_ring(&data);
    }

    /// The same with memory that resembles records, so that later checks are reached.
    #[test]
    fn nearly_good_memory_is_harmless(
        size in 0_u8..6,
        tail in any::<u8>(),
        records in prop::collection::vec((0_u8..64, prop::sample::select(vec![1_u16, 2, 0xffff]), any::<[u8; 10]>()), 1..80),
        rest in prop::collection::vec(any::<u8>(), 0..500),
    ) {
        // Indices: kind 1 (small multiples of 16), then the waits.
        let mut data = vec![size, 1, tail, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        for (length, kind, filler) in records {
            data.extend([length, 0, 0, 0]);
            data.extend(kind.to_le_bytes());
            data.extend(filler);
        }
        data.extend(rest);
        fuzz_ring(&data);
    }
}
