//! A small device for tests and fuzzing: memory and copies are real, kernels
//! are a few built-in functions, and the test decides when streams continue.

pub mod device;
#[cfg(test)]
pub mod guest;
mod memory_unsafe;
#[cfg(test)]
pub(crate) use memory_unsafe::read;
