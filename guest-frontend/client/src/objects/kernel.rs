//! The kernel of a graph's node.

use std::sync::{Arc, OnceLock};

use crate::objects::function::Function;
use crate::objects::shape::Shape;

/// A kernel with its parameters.
#[derive(Debug)]
pub struct Kernel {
    /// Device of the guest that it runs on.
    pub ordinal: u32,
    /// The program's handle of its context.
    pub context: u64,
    /// The kernel.
    pub function: Arc<Function>,
    /// The program's handle of it.
    pub handle: u64,
    /// Shape of the launch.
    pub shape: Shape,
    /// Its parameters, in the layout of [`Function::parameters`].
    pub parameters: Vec<u8>,
    lent: OnceLock<Arc<Lent>>,
    /// The copy lent for parameters that these replaced.
    lent_before: OnceLock<Arc<Lent>>,
}

/// A copy of a node's parameters that the program may read.
#[derive(Debug)]
struct Lent {
    _bytes: Vec<u8>,
    /// The address of each parameter in the bytes.
    pointers: Vec<u64>,
}

impl Kernel {
    /// A launch of `function`.
    #[must_use]
    pub fn new(
        ordinal: u32,
        context: u64,
        function: Arc<Function>,
        handle: u64,
        shape: Shape,
        parameters: Vec<u8>,
    ) -> Self {
        Self {
            ordinal,
            context,
            function,
            handle,
            shape,
            parameters,
            lent: OnceLock::new(),
            lent_before: OnceLock::new(),
        }
    }

    /// Whether launches of both are the same.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.function, &other.function)
            && self.shape == other.shape
            && self.parameters == other.parameters
    }

    /// Replaces function and parameters.
    pub(crate) fn replace(&mut self, function: &Arc<Function>, parameters: &[u8]) {
        if !Arc::ptr_eq(function, &self.function) {
            self.function = Arc::clone(function);
        }
        self.parameters.clear();
        self.parameters.extend_from_slice(parameters);
        self.lent = OnceLock::new();
    }

    /// The address of each parameter in a copy of [`parameters`](Self::parameters). Valid as
    /// long as the node has these parameters or the ones that replace them: programs pass what
    /// they read to one node after another.
    #[must_use]
    pub fn pointers(&self) -> &[u64] {
        let lent = self.lent.get_or_init(|| {
            let bytes = self.parameters.clone();
            let base = bytes.as_ptr().expose_provenance() as u64;
            let places = self.function.parameters().iter();
            let pointers = places.map(|(offset, _)| base + u64::from(*offset));
            Arc::new(Lent {
                pointers: pointers.collect(),
                _bytes: bytes,
            })
        });
        &lent.pointers
    }

    /// Keeps what the program may still read of the parameters that these replace.
    pub(super) fn keep_lent(&self, replaced: &Self) {
        if let Some(lent) = replaced.lent.get().or(replaced.lent_before.get()) {
            let _ = self.lent_before.set(Arc::clone(lent));
        }
    }
}
