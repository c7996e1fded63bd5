//! Work whose results tell whether anything was lost, done twice or done out
//! of order.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use paragpu_client::Session;
use paragpu_client::launch::Shape;
use paragpu_client::module::Function;
use paragpu_client::objects::preference::Preferences;
use paragpu_client::sys::memory::{HostRows, HostSlice};

/// One step of a chain: not commutative, so that order counts.
const PTX: &str = r#"
.version 8.0
.target sm_75
.address_size 64
.visible .entry step(.param .u64 cell, .param .u64 value)
{
    .reg .b64 %rd<6>;
    ld.param.u64 %rd1, [cell];
    ld.param.u64 %rd2, [value];
    ld.global.u64 %rd3, [%rd1];
    mov.u64 %rd4, 6364136223846793005;
    mad.lo.u64 %rd5, %rd3, %rd4, %rd2;
    st.global.u64 [%rd1], %rd5;
    ret;
}
"#;
const FACTOR: u64 = 6_364_136_223_846_793_005;
/// Bytes of a thread's buffer.
const BUFFER: usize = 2 << 20;
const ONE: Shape = Shape {
    grid: [1; 3],
    block: [1; 3],
    dynamic_shared: 0,
    cooperative: false,
    cluster: [0; 3],
    preferred_cluster: [0; 3],
    programmatic: false,
    preferences: Preferences::NONE,
};

/// A small generator, the same everywhere (splitmix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

pub struct Load {
    session: Arc<Session>,
    step: Arc<Function>,
}

impl Load {
    pub fn new(session: &Arc<Session>) -> Self {
        let module = session.modules().load(PTX.as_bytes(), &[]).unwrap();
        Self {
            session: Arc::clone(session),
            step: session.modules().function(&module, "step").unwrap(),
        }
    }

    /// Works until told to stop; how many kernels were launched.
    pub fn run(&self, seed: u64, stop: &AtomicBool) -> u64 {
        let session = &self.session;
        let mut random = Random(seed);
        let stream = session.streams().create(1, 0).unwrap();
        let event = session.events().create(0).unwrap();
        let memory = session.memory().allocate(BUFFER as u64 + 8).unwrap();
        let cell = memory + BUFFER as u64;
        session
            .copies()
            .memset(
                memory,
                BUFFER as u64 + 8,
                0,
                1,
                BUFFER as u64 + 8,
                1,
                &stream,
            )
            .unwrap();
        let mut model = vec![0_u8; BUFFER];
        let mut chain = 0_u64;
        let mut launches = 0;
        let called = Arc::new(AtomicU64::new(0));
        let mut calls = 0;
        while !stop.load(Ordering::Relaxed) {
            // Mostly small; now and then more than a ring or a socket holds.
            let most = if random.below(40) == 0 {
                BUFFER
            } else {
                60_000
            };
            let size = 1 + random.below(most as u64 - 1) as usize;
            let at = random.below((BUFFER - size) as u64 + 1) as usize;
            match random.below(20) {
                0..9 => {
                    for _ in 0..random.below(50) {
                        let value = random.next();
                        let parameters = [cell.to_le_bytes(), value.to_le_bytes()].concat();
                        session
                            .launches()
                            .launch(&self.step, &stream, &ONE, &parameters)
                            .unwrap();
                        chain = chain.wrapping_mul(FACTOR).wrapping_add(value);
                        launches += 1;
                    }
                }
                9..12 => {
                    let mut bytes = vec![0; size];
                    for chunk in bytes.chunks_mut(8) {
                        chunk.copy_from_slice(&random.next().to_le_bytes()[..chunk.len()]);
                    }
                    model[at..at + size].copy_from_slice(&bytes);
                    // SAFETY: `bytes` has `size` and outlives the copy.
                    let source = unsafe { HostSlice::new(bytes.as_ptr().cast(), size) };
                    session
                        .copies()
                        .to_device(memory + at as u64, source, &stream, true)
                        .unwrap();
                }
                12..15 => {
                    let mut bytes = vec![0xee; size];
                    // SAFETY: as above.
                    let place = unsafe { HostRows::new(bytes.as_mut_ptr().cast(), size) };
                    session
                        .copies()
                        .from_device(place, memory + at as u64, &stream, true)
                        .unwrap();
                    assert!(bytes == model[at..at + size], "{size} bytes at {at}");
                }
                15 => {
                    let value = random.next() as u8;
                    model[at..at + size].fill(value);
                    let bytes = size as u64;
                    session
                        .copies()
                        .memset(
                            memory + at as u64,
                            bytes,
                            value.into(),
                            1,
                            bytes,
                            1,
                            &stream,
                        )
                        .unwrap();
                }
                16 => {
                    session.events().record(&event, &stream).unwrap();
                    session.events().synchronize(&event).unwrap();
                }
                17 => {
                    let counter = Arc::clone(&called);
                    let function = move || {
                        counter.fetch_add(1, Ordering::SeqCst);
                    };
                    session
                        .host_functions()
                        .launch(&stream, Box::new(function))
                        .unwrap();
                    calls += 1;
                }
                18 => {
                    let more = session.memory().allocate(4 << 20).unwrap();
                    session.memory().free(more).unwrap();
                }
                _ => session.streams().synchronize(&stream).unwrap(),
            }
        }
        session.streams().synchronize(&stream).unwrap();
        assert_eq!(
            called.load(Ordering::SeqCst),
            calls,
            "each host function once"
        );
        let mut bytes = vec![0; BUFFER + 8];
        // SAFETY: all of `bytes`, which outlives the copy.
        let place = unsafe { HostRows::new(bytes.as_mut_ptr().cast(), BUFFER + 8) };
        session
            .copies()
            .from_device(place, memory, &stream, true)
            .unwrap();
        assert!(
            bytes[..BUFFER] == model[..],
            "memory as the program wrote it"
        );
        assert_eq!(
            bytes[BUFFER..],
            chain.to_le_bytes(),
            "kernels once, in order"
        );
        session.memory().free(memory).unwrap();
        launches
    }
}
