//! Tests of the software GPU as its users see it, one program: each links the whole crate.

mod common;

mod arithmetic;
mod asynchronous;
mod atomics;
mod block_scale;
mod branches;
mod children;
mod clusters;
mod control;
mod error_words;
mod exchanges;
mod faults;
mod forms;
mod grammar;
mod images;
mod infinities;
mod lengths;
mod matrices;
mod messages;
mod narrow;
mod programs;
mod quad_pairs;
mod single_bits;
mod soft_float;
mod sparse;
mod stack;
mod streams;
mod tensors;
mod textures;
mod variants;
mod video;
mod waits;
