//! The streams that calls name: created ones, and the two default ones.

use std::cell::RefCell;
use std::ffi::c_int;
use std::mem::{self, ManuallyDrop};
use std::rc::Rc;
use std::sync::Arc;

use paragpu_abi::{
    CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD,
    CUstream,
};
use paragpu_client::stream::Stream;
use paragpu_client::sys::process;
use paragpu_client::{Result, Session};
use paragpu_protocol::status::Status;

use crate::current::{self, Current};
use crate::objects::context::has_other_contexts;
use crate::objects::{self, Found, Object};

/// The thread's own default stream of one device. It ends with the thread.
#[derive(Debug)]
pub struct OwnStream {
    session: &'static Session,
    stream: Arc<Stream>,
}

impl Drop for OwnStream {
    fn drop(&mut self) {
        if !process::forked() {
            let _ = self.session.streams().destroy(&self.stream);
        }
    }
}

// Without a destructor, like the thread's contexts.
thread_local! {
    static OWN: RefCell<ManuallyDrop<Vec<Rc<OwnStream>>>> =
        const { RefCell::new(ManuallyDrop::new(Vec::new())) };
}

/// Destroys the thread's streams when it ends.
fn end() {
    drop(OWN.with(|own| mem::take(&mut **own.borrow_mut())));
}

/// A stream argument.
#[derive(Debug)]
pub enum Named {
    /// The legacy default stream.
    Legacy(&'static Session),
    /// The default stream of a green context.
    Green(Current),
    /// The thread's own default stream.
    Own(Rc<OwnStream>),
    /// A stream that the program created.
    Created(Found),
}

impl Named {
    /// Its session.
    pub fn session(&self) -> Result<&'static Session> {
        match self {
            Self::Legacy(session) => Ok(session),
            Self::Green(context) => Ok(context.session),
            Self::Own(own) => Ok(own.session),
            Self::Created(found) => match &***found {
                Object::Stream(inner) => Ok(inner.session),
                _ => Err(Status::INVALID_HANDLE),
            },
        }
    }

    /// The stream.
    pub fn stream(&self) -> Result<&Arc<Stream>> {
        match self {
            Self::Legacy(session) => Ok(session.legacy()),
            Self::Green(context) => match &context.green {
                Some(inside) => Ok(inside.green.default_stream()),
                None => Ok(context.session.legacy()),
            },
            Self::Own(own) => Ok(&own.stream),
            Self::Created(found) => match &***found {
                Object::Stream(inner) => Ok(&inner.object),
                _ => Err(Status::INVALID_HANDLE),
            },
        }
    }

    /// Both.
    pub fn both(&self) -> Result<(&'static Session, &Arc<Stream>)> {
        Ok((self.session()?, self.stream()?))
    }

    /// Its number (cuStreamGetId): the device, and 48 bits that are unique on it.
    pub fn id(&self) -> Result<u64> {
        let (session, stream) = self.both()?;
        Ok(u64::from(session.ordinal()) << 48 | stream.handle().0)
    }

    /// The handle of the context that it belongs to.
    pub fn context(&self) -> Result<u64> {
        match self {
            Self::Legacy(_) | Self::Green(_) | Self::Own(_) => Ok(current::current()?.name),
            Self::Created(found) => match &***found {
                Object::Stream(inner) => Ok(inner.context),
                _ => Err(Status::INVALID_HANDLE),
            },
        }
    }

    /// The context in which the kernel of a library runs there: the stream's, if it is one of the
    /// current device.
    pub fn current(&self) -> Result<Current> {
        let current = current::current()?;
        if let Self::Created(_) = self
            && has_other_contexts()
        {
            let handle = usize::try_from(self.context()?).unwrap_or(0);
            let own = current::find(std::ptr::without_provenance_mut(handle));
            return Ok(own
                .ok()
                .filter(|own| own.ordinal == current.ordinal)
                .unwrap_or(current));
        }
        Ok(current)
    }

    /// Whether an object cannot be used in it, because it is of another context. `context` is
    /// the object's; `None` if it may be used in each.
    #[inline]
    pub fn is_apart(&self, context: impl FnOnce() -> Option<u64>) -> bool {
        has_other_contexts()
            && context().is_some_and(|own| self.context().is_ok_and(|other| are_apart(own, other)))
    }
}

/// Whether objects of two contexts, by their handles, cannot be used together. Those of a green
/// context and of its device's primary one can.
fn are_apart(one: u64, other: u64) -> bool {
    let is_other = |handle: u64| {
        let handle = usize::try_from(handle).unwrap_or(0);
        let found = objects::find(std::ptr::without_provenance_mut(handle));
        found.is_some_and(
            |found| matches!(&**found, Object::Context(context) if !context.is_primary()),
        )
    };
    one != other && (is_other(one) || is_other(other))
}

/// The stream of an argument. The default streams are those of the current context.
#[inline]
pub fn named(stream: CUstream) -> Result<Named> {
    if stream.is_null() || stream == CU_STREAM_LEGACY {
        let current = current::current()?;
        return Ok(match current.green {
            Some(_) => Named::Green(current),
            None => Named::Legacy(current.session),
        });
    }
    if stream == CU_STREAM_PER_THREAD {
        let current = current::current()?;
        // As documented by CUDA for `cuStreamGetCtx_v2`.
        if current.green.is_some() {
            return Err(Status::INVALID_HANDLE);
        }
        return own(current.session).map(Named::Own);
    }
    let found = objects::find(stream).ok_or_else(|| objects::missing(stream))?;
    match &**found {
        Object::Stream(_) => Ok(Named::Created(found)),
        _ => Err(Status::INVALID_HANDLE),
    }
}

fn own(session: &'static Session) -> Result<Rc<OwnStream>> {
    OWN.with(|own| {
        let mut own = own.borrow_mut();
        if let Some(kept) = own
            .iter()
            .find(|kept| kept.session.ordinal() == session.ordinal())
        {
            return Ok(Rc::clone(kept));
        }
        let made = Rc::new(OwnStream {
            session,
            stream: session.streams().create(0, 0)?,
        });
        if own.is_empty() {
            process::at_thread_end(end);
        }
        own.push(Rc::clone(&made));
        Ok(made)
    })
}

/// Least and greatest priority: CUDA gives 0 and -5 where priorities are
/// supported, else 0 and 0.
pub fn priorities(session: &Session) -> Result<(c_int, c_int)> {
    let supported = session
        .snapshot()?
        .attribute(CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED.cast_unsigned())
        .unwrap_or(0)
        != 0;
    Ok((0, if supported { -5 } else { 0 }))
}
