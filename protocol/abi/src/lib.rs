//! C types and constants of the CUDA 13.0 driver and runtime interfaces,
//! shared by `libcuda.so.1` and `libcudart.so.13`.
//!
//! Names are CUDA's own, so that a reader finds them in CUDA's reference
//! manuals, which also give the meaning of every field. Values that C calls
//! enumerations are plain integers here: a peer may pass any number.
//!
//! Each record is declared once, by [`abi_struct!`], which also lists its
//! layout; each constant once, by [`abi_consts!`]. The test `layout.rs`
//! compares both lists with NVIDIA's headers where those are present.
#![forbid(unsafe_code)]
// C names, and fields whose meaning CUDA's manuals give.
#![allow(
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    missing_docs
)]

pub mod array;
pub mod copy;
pub mod cuda12;
pub mod device;
pub mod error;
pub mod geometry;
pub mod graph;
pub mod handle;
pub mod launch;
pub mod memory;
pub mod nvml;
pub mod stream;
pub mod texture;

pub use array::*;
pub use copy::*;
pub use device::*;
pub use error::*;
pub use geometry::*;
pub use graph::*;
pub use handle::*;
pub use launch::*;
pub use memory::*;
pub use stream::*;
pub use texture::*;

/// Size, alignment and field offsets of one C record, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    /// The record's C name.
    pub name: &'static str,
    /// Size in bytes.
    pub size: usize,
    /// Alignment in bytes.
    pub align: usize,
    /// Field name and byte offset, in declaration order.
    pub fields: &'static [(&'static str, usize)],
}

/// Declares `#[repr(C)]` records and the list `LAYOUTS` that describes them.
macro_rules! abi_struct {
    ($( $(#[$doc:meta])* $kind:ident $name:ident { $( $field:ident : $ty:ty ),* $(,)? } )*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            #[derive(Clone, Copy)]
            pub $kind $name { $( pub $field: $ty ),* }
        )*
        /// Layouts of this module's records, for comparison with C.
        pub(crate) const LAYOUTS: &[$crate::Layout] = &[
            $( $crate::Layout {
                name: stringify!($name),
                size: size_of::<$name>(),
                align: align_of::<$name>(),
                fields: &[ $( (stringify!($field), core::mem::offset_of!($name, $field)) ),* ],
            } ),*
        ];
    };
}
pub(crate) use abi_struct;

/// Declares integer constants, grouped by type, and the list `CONSTANTS` that describes them.
macro_rules! abi_consts {
    ($( $ty:ty: $( $name:ident = $value:expr ),* $(,)? );* $(;)?) => {
        $( $( pub const $name: $ty = $value; )* )*
        /// This module's constants, for comparison with C.
        pub(crate) const CONSTANTS: &[(&str, i64)] =
            &[ $( $( (stringify!($name), $value as i64) ),* ),* ];
    };
}
pub(crate) use abi_consts;

/// Layouts of all records of this crate.
pub fn layouts() -> impl Iterator<Item = &'static Layout> {
    [
        array::LAYOUTS,
        copy::LAYOUTS,
        device::LAYOUTS,
        geometry::LAYOUTS,
        graph::LAYOUTS,
        launch::LAYOUTS,
        memory::LAYOUTS,
        texture::LAYOUTS,
    ]
    .into_iter()
    .flatten()
}

/// All integer constants of this crate: C name and value.
pub fn constants() -> impl Iterator<Item = (&'static str, i64)> {
    [
        array::CONSTANTS,
        copy::CONSTANTS,
        device::CONSTANTS,
        graph::CONSTANTS,
        launch::CONSTANTS,
        memory::CONSTANTS,
        stream::CONSTANTS,
        texture::CONSTANTS,
        error::CONSTANTS,
    ]
    .into_iter()
    .flatten()
    .copied()
}
