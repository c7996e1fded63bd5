//! Entry points of fuzz targets: a stream of arbitrary bytes, split anywhere.

#![allow(clippy::indexing_slicing, reason = "what fuzzes is a test")]

use paragpu_communicator::Error;
use paragpu_protocol::frame::{FrameHeader, HEADER_LEN, MAX_PAYLOAD};

use crate::parser::{Parser, RESERVED_KIND};

/// Parses a stream of bytes.
#[derive(Debug, PartialEq, Eq)]
struct Meaning {
    frames: Vec<(FrameHeader, Vec<u8>)>,
    broken: bool,
    inside_frame: bool,
}

/// Parses `data`, cut at places that its first bytes select, and compares the result with
/// that of the whole. Panics if they differ.
pub fn fuzz_stream(data: &[u8]) {
    let (cuts, bytes) = data.split_at(data.len().min(8));
    let expected = meaning(bytes);
    let got = parsed(bytes, cuts);
    assert_eq!(got.frames, expected.frames);
    assert_eq!(got.broken, expected.broken);
    if !got.broken {
        assert_eq!(got.inside_frame, expected.inside_frame);
    }
}

/// The frames in `bytes`, by a straightforward reference parser.
fn meaning(mut bytes: &[u8]) -> Meaning {
    let mut frames = Vec::new();
    let mut broken = false;
    while let Some((head, rest)) = bytes.split_first_chunk::<HEADER_LEN>() {
        let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let kind = u16::from_le_bytes([head[4], head[5]]);
        if length > MAX_PAYLOAD || kind == RESERVED_KIND {
            broken = true;
            break;
        }
        if rest.len() < length {
            break;
        }
        let (payload, after) = rest.split_at(length);
        let header = FrameHeader {
            length: length as u32,
            kind,
            slot: u16::from_le_bytes([head[6], head[7]]),
            sequence: u64::from_le_bytes([
                head[8], head[9], head[10], head[11], head[12], head[13], head[14], head[15],
            ]),
        };
        frames.push((header, payload.to_vec()));
        bytes = after;
    }
    Meaning {
        frames,
        broken,
        inside_frame: !bytes.is_empty(),
    }
}

fn parsed(mut bytes: &[u8], cuts: &[u8]) -> Meaning {
    let mut parser = Parser::new();
    let mut frames = Vec::new();
    let mut cuts = cuts.iter().cycle();
    let broken = loop {
        match take(&mut parser, &mut frames) {
            Err(_) => break true,
            Ok(()) if bytes.is_empty() => break false,
            Ok(()) => {}
        }
        let Ok(space) = parser.space() else {
            break true;
        };
        assert!(!space.is_empty(), "no place for an unfinished frame");
        let cut = cuts.next().map_or(usize::MAX, |cut| match cut {
            0 => usize::MAX,
            small @ 1..=127 => usize::from(*small),
            large => usize::from(*large) * 977,
        });
        let count = space.len().min(bytes.len()).min(cut);
        let (now, later) = bytes.split_at(count);
        space[..count].copy_from_slice(now);
        parser.filled(count);
        bytes = later;
    };
    Meaning {
        frames,
        broken,
        inside_frame: parser.is_inside_frame(),
    }
}

fn take(parser: &mut Parser, frames: &mut Vec<(FrameHeader, Vec<u8>)>) -> Result<(), Error> {
    while let Some((header, payload)) = parser.next()? {
        frames.push((header, parser.place(payload).to_vec()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn seeds_of_stream() {
        paragpu_corpora::each("stream", |_, data| super::fuzz_stream(data));
    }
}
