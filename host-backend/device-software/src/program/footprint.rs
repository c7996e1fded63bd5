//! The memory that a decoded module takes.

use super::{Ext, Func, Program, TexRead};
use crate::error::PtxError;
use crate::exec::fragment::{Fragment, Matrix};
use std::mem::{size_of, size_of_val};
use std::sync::Arc;

/// The bytes that glibc takes for an allocation.
fn allocated(bytes: usize) -> usize {
    match bytes {
        0 => 0,
        bytes => (bytes + 8).next_multiple_of(16).max(32),
    }
}

fn list<T>(list: &Vec<T>) -> usize {
    allocated(list.capacity() * size_of::<T>())
}

fn boxed<T>(_: &T) -> usize {
    allocated(size_of::<T>())
}

/// The share of a value that `Arc`s share. Behind two counters.
fn shared<T: ?Sized>(value: &Arc<T>) -> usize {
    allocated(size_of_val(&**value) + 2 * size_of::<usize>()) / Arc::strong_count(value)
}

fn fragment(fragment: &Fragment) -> usize {
    list(&fragment.regs) + shared(&fragment.places)
}

fn matrix(matrix: &Matrix) -> usize {
    match matrix {
        Matrix::Multiply(of) => [&of.a, &of.b, &of.c, &of.d].into_iter().map(fragment).sum(),
        Matrix::Transfer(of) => fragment(&of.fragment),
        Matrix::Rows { regs, .. } => list(regs),
        Matrix::Transpose { .. } => 0,
    }
}

fn texture(of: &TexRead) -> usize {
    let gradients = of.gradients.iter().flatten().map(list);
    list(&of.coords) + list(&of.d) + gradients.sum::<usize>()
}

fn operands(ext: &Ext) -> usize {
    match ext {
        Ext::Call(call) => list(&call.args) + list(&call.returns),
        Ext::Load(access) | Ext::Store(access) => list(&access.regs),
        Ext::Matrix(of) => boxed(&**of) + matrix(of),
        Ext::CopyAsync(of) => boxed(&**of),
        Ext::CopyTensor(of) => boxed(&**of) + list(&of.coordinates),
        Ext::Tex(of) => boxed(&**of) + texture(of),
        Ext::Surf(of) => boxed(&**of) + list(&of.coords) + list(&of.regs),
        Ext::ImageQuery(of) => boxed(&**of),
        Ext::Video { video, .. } => boxed(&**video) + list(&video.lanes),
        _ => 0,
    }
}

fn refusal(error: &Arc<PtxError>) -> usize {
    let (PtxError::Invalid { what: text, .. }
    | PtxError::Unsupported { what: text, .. }
    | PtxError::Unresolved { name: text, .. }) = &**error;
    shared(error) + allocated(text.capacity()) / Arc::strong_count(error)
}

fn function(func: &Func) -> usize {
    list(&func.constants.rows32)
        + list(&func.constants.rows64)
        + list(&func.params)
        + list(&func.returns)
        + func.refused.iter().map(refusal).sum::<usize>()
}

impl Program {
    /// Bytes of memory that it takes.
    #[must_use]
    pub fn footprint(&self) -> usize {
        // A hash table has a byte beside each entry, and one in eight stays free.
        let entries = (self.by_name.capacity() * 8 / 7).next_power_of_two();
        let entry = size_of::<(Arc<str>, usize)>() + 1;
        // A function shares its name with the table.
        let names = self.by_name.keys().map(|name| 2 * shared(name));
        list(&self.code)
            + list(&self.lines)
            + list(&self.ext)
            + list(&self.tables)
            + list(&self.funcs)
            + allocated(entries * entry + 16)
            + names.sum::<usize>()
            + self.ext.iter().map(operands).sum::<usize>()
            + self.tables.iter().map(list).sum::<usize>()
            + self.funcs.iter().map(function).sum::<usize>()
    }
}
