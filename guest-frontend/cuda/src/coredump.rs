//! Attributes of core dumps of a GPU. A virtual GPU writes none: the attributes are
//! stored, and those that would request a dump cannot be set.

use paragpu_abi::{
    CU_COREDUMP_ENABLE_ON_EXCEPTION as ON_EXCEPTION,
    CU_COREDUMP_ENABLE_USER_TRIGGER as USER_TRIGGER, CU_COREDUMP_FILE as FILE,
    CU_COREDUMP_GENERATION_FLAGS as GENERATION, CU_COREDUMP_LIGHTWEIGHT as LIGHTWEIGHT,
    CU_COREDUMP_LIGHTWEIGHT_FLAGS as LIGHT, CU_COREDUMP_PIPE as PIPE,
    CU_COREDUMP_TRIGGER_HOST as TRIGGER_HOST,
};
use paragpu_client::Result;
use paragpu_protocol::status::Status;
use parking_lot::Mutex;

/// Bytes of a path with its zero.
pub const PATH: usize = 1024;

/// The attributes of a context, or the defaults of new ones.
#[derive(Debug, Clone)]
pub struct Attributes {
    trigger_host: bool,
    generation: u32,
    file: String,
    pipe: String,
}

/// An attribute's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A C++ bool.
    Flag(bool),
    /// An int.
    Number(u32),
    /// A path of at most [`PATH`] bytes.
    Path(String),
}

/// All generation flags.
const KNOWN: u32 = 0x3f;

static GLOBAL: Mutex<Option<Attributes>> = Mutex::new(None);

impl Attributes {
    fn new() -> Self {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let place = format!("{}.{}", host.trim(), std::process::id());
        Self {
            trigger_host: true,
            generation: 0,
            file: format!("core.cuda.{place}"),
            pipe: format!("corepipe.cuda.{place}"),
        }
    }

    /// The attributes of a new context.
    #[must_use]
    pub fn of_new_context() -> Self {
        Self::with_global(|global| global.clone())
    }

    /// Calls a function with the defaults of new contexts.
    pub fn with_global<R>(with: impl FnOnce(&mut Self) -> R) -> R {
        with(GLOBAL.lock().get_or_insert_with(Self::new))
    }

    /// An attribute.
    ///
    /// # Errors
    /// `INVALID_VALUE` for an unknown attribute.
    pub fn get(&self, attribute: i32) -> Result<Value> {
        match attribute {
            ON_EXCEPTION | USER_TRIGGER => Ok(Value::Flag(false)),
            TRIGGER_HOST => Ok(Value::Flag(self.trigger_host)),
            LIGHTWEIGHT => Ok(Value::Flag(self.generation & LIGHT == LIGHT)),
            FILE => Ok(Value::Path(self.file.clone())),
            PIPE => Ok(Value::Path(self.pipe.clone())),
            GENERATION => Ok(Value::Number(self.generation)),
            _ => Err(Status::INVALID_VALUE),
        }
    }

    /// Changes an attribute.
    ///
    /// # Errors
    /// `INVALID_VALUE` for an unknown attribute or an invalid value,
    /// `NOT_SUPPORTED` if it requests a dump.
    pub fn set(&mut self, attribute: i32, value: Value) -> Result<()> {
        match (attribute, value) {
            (ON_EXCEPTION | USER_TRIGGER, Value::Flag(false)) => {}
            (ON_EXCEPTION | USER_TRIGGER, Value::Flag(true)) => return Err(Status::NOT_SUPPORTED),
            (TRIGGER_HOST, Value::Flag(flag)) => self.trigger_host = flag,
            (LIGHTWEIGHT, Value::Flag(true)) => self.generation |= LIGHT,
            (LIGHTWEIGHT, Value::Flag(false)) => self.generation &= !LIGHT,
            (FILE, Value::Path(path)) => self.file = path,
            (PIPE, Value::Path(path)) => self.pipe = path,
            (GENERATION, Value::Number(flags)) if flags & !KNOWN == 0 => self.generation = flags,
            _ => return Err(Status::INVALID_VALUE),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_stored_and_no_dump_is_promised() {
        let mut of = Attributes::new();
        for attribute in 1..=7 {
            let value = of.get(attribute).unwrap();
            of.set(attribute, value.clone()).unwrap();
            assert_eq!(of.get(attribute), Ok(value));
        }
        assert_eq!(of.get(8), Err(Status::INVALID_VALUE));
        let dump = Value::Flag(true);
        assert_eq!(
            of.set(ON_EXCEPTION, dump.clone()),
            Err(Status::NOT_SUPPORTED)
        );
        assert_eq!(
            of.set(USER_TRIGGER, dump.clone()),
            Err(Status::NOT_SUPPORTED)
        );
        of.set(LIGHTWEIGHT, dump).unwrap();
        assert_eq!(of.get(GENERATION), Ok(Value::Number(LIGHT)));
        of.set(GENERATION, Value::Number(0)).unwrap();
        assert_eq!(of.get(LIGHTWEIGHT), Ok(Value::Flag(false)));
        let unknown = of.set(GENERATION, Value::Number(0x40));
        assert_eq!(unknown, Err(Status::INVALID_VALUE));
        let mixed = of.set(FILE, Value::Number(1));
        assert_eq!(mixed, Err(Status::INVALID_VALUE));
    }
}
