//! Functions that are only forwarded: the host's driver answers them unchanged. Their
//! code is derived from the description of the driver.

use std::ffi::{c_int, c_uint};

use paragpu_abi::{CUevent, CUfunction, CUmodule};
use paragpu_client::Session;
use paragpu_protocol::handle::{EventHandle, FunctionHandle, ModuleHandle};
use paragpu_protocol::status::Status;
use paragpu_protocol::table;

use crate::current;
use crate::sys::boundary::Out;
use crate::sys::{Result, event, module};

/// A call to be sent. It goes to the session of the objects in its arguments, or, without
/// any, to that of the thread's context.
#[derive(Debug, Default)]
pub struct Crossing {
    session: Option<&'static Session>,
}

impl Crossing {
    /// Records that an object of `session` is among the arguments.
    fn names(&mut self, session: &'static Session) -> Result {
        match self.session.replace(session) {
            Some(other) if !std::ptr::eq(other, session) => Err(Status::INVALID_HANDLE),
            _ => Ok(()),
        }
    }

    fn session(self) -> Result<&'static Session> {
        match self.session {
            Some(session) => Ok(session),
            None => Ok(current::current()?.session),
        }
    }
}

/// A kind of parameter: its C type and its type on the wire.
pub trait WireParameter {
    /// The C type.
    type C;
    /// The type on the wire.
    type Wire;

    /// Checks and converts it.
    ///
    /// # Errors
    /// The error for an invalid argument.
    fn cross(passed: Self::C, crossing: &mut Crossing) -> Result<Self::Wire>;
}

/// The kinds, by their names in the description.
pub mod kind {
    #![allow(missing_debug_implementations)]

    /// An event with timing.
    pub struct TimedEvent;
    /// An enumeration of CUDA.
    pub struct Enumeration;
    /// A kernel.
    pub struct CUfunction;
    /// A module.
    pub struct CUmodule;

    pub use std::ffi::{c_int, c_uint};
    pub use std::primitive::usize;
}

impl WireParameter for kind::TimedEvent {
    type C = CUevent;
    type Wire = EventHandle;

    fn cross(passed: CUevent, crossing: &mut Crossing) -> Result<EventHandle> {
        let found = event::find(passed)?;
        let event = event::inner(&found)?;
        crossing.names(event.session)?;
        event.object.timed_handle()
    }
}

impl WireParameter for kind::CUfunction {
    type C = CUfunction;
    type Wire = FunctionHandle;

    fn cross(passed: CUfunction, crossing: &mut Crossing) -> Result<FunctionHandle> {
        let callable = module::callable(passed)?;
        crossing.names(callable.session)?;
        Ok(callable.function()?.handle())
    }
}

impl WireParameter for kind::CUmodule {
    type C = CUmodule;
    type Wire = ModuleHandle;

    fn cross(passed: CUmodule, crossing: &mut Crossing) -> Result<ModuleHandle> {
        let found = module::find(passed)?;
        let module = module::inner(&found)?;
        crossing.names(module.session)?;
        Ok(module.object.handle())
    }
}

impl WireParameter for kind::Enumeration {
    type C = c_int;
    type Wire = u32;

    fn cross(passed: c_int, _: &mut Crossing) -> Result<u32> {
        u32::try_from(passed).map_err(|_| Status::INVALID_VALUE)
    }
}

macro_rules! numbers {
    ($( $kind:ty => $wire:ty ),* $(,)?) => {$(
        impl WireParameter for $kind {
            type C = $kind;
            type Wire = $wire;

            fn cross(passed: $kind, _: &mut Crossing) -> Result<$wire> {
                <$wire>::try_from(passed).map_err(|_| Status::INVALID_VALUE)
            }
        }
    )*};
}
numbers!(c_int => i32, c_uint => u32, usize => u64);

/// The part of a reply that a function writes.
trait Answers<Wire> {
    fn answer(reply: Wire) -> Self;
}

impl<T> Answers<T> for T {
    fn answer(reply: T) -> T {
        reply
    }
}

impl Answers<u64> for usize {
    fn answer(reply: u64) -> usize {
        usize::try_from(reply).unwrap_or(usize::MAX)
    }
}

// Functions have their C names.
#[allow(non_snake_case)]
mod derived {
    use super::*;

    include!(concat!(env!("OUT_DIR"), "/crossing.rs"));
}
pub(crate) use derived::*;
