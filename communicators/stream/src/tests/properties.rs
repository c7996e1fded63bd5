//! Arbitrary streams, cut anywhere.

use paragpu_protocol::frame::{FrameHeader, MAX_PAYLOAD};
use proptest::prelude::*;

use crate::fuzzing::fuzz_stream;

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Arbitrary bytes parse to the same frames however they are cut.
    #[test]
    fn cuts_change_nothing(data in prop::collection::vec(any::<u8>(), 0..5000)) {
        fuzz_stream(&data);
    }

    /// So do real frames, small and large, one of which has an overwritten header.
    #[test]
    fn cuts_change_nothing_in_frames(
        cuts in any::<[u8; 8]>(),
        lengths in prop::collection::vec(
            prop_oneof![0_usize..300, Just(MAX_PAYLOAD), 200_000..=MAX_PAYLOAD], 1..8),
        scribble in prop::option::of((any::<prop::sample::Index>(), 0_usize..8, any::<u8>())),
        end in any::<prop::sample::Index>(),
    ) {
        let mut data = cuts.to_vec();
        let mut headers = Vec::new();
        for (sequence, length) in (1..).zip(&lengths) {
            headers.push(data.len());
            let header = FrameHeader::new(3, 1, sequence, *length).unwrap();
            data.extend(header.to_bytes());
            data.extend((0..*length).map(|index| (index * 7) as u8));
        }
        if let Some((which, byte, value)) = scribble {
            data[which.get(&headers) + byte] = value;
        }
        data.truncate(8 + end.index(data.len() - 8 + 1));
        fuzz_stream(&data);
    }
}
