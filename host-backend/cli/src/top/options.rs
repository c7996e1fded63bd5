//! The options of `paragpu top`.

use std::time::Duration;

use crate::arguments::{Output, Sort};

/// The options of `paragpu top`.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Time between two samples.
    pub interval: Duration,
    /// Take one sample only.
    pub once: bool,
    /// Sort by this, in descending order.
    pub sort: Sort,
    /// How to print.
    pub output: Output,
}
