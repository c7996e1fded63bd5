//! libvirt's C library, loaded at run time, and thin safe wrappers. The types are those of
//! libvirt's public headers, `libvirt-host.h`, `libvirt-domain.h` and `virterror.h`, whose
//! functions have a stable ABI.
//!
//! Binding crates are not used because they link against the library: without libvirt, the
//! command could then neither be built nor started.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::ptr::{NonNull, null_mut};

use core::ffi::{c_char, c_int, c_uint, c_void};

use crate::{Error, xml};

/// The library's name. Its version number has never changed.
const LIBRARY: &str = "libvirt.so.0";

/// `VIR_ERR_NO_DOMAIN`.
const NO_DOMAIN: c_int = 42;
/// `VIR_DOMAIN_XML_INACTIVE`.
const XML_INACTIVE: c_uint = 1 << 1;
/// `VIR_DOMAIN_AFFECT_LIVE`.
const AFFECT_LIVE: c_uint = 1 << 0;
/// `VIR_DOMAIN_AFFECT_CONFIG`.
const AFFECT_CONFIG: c_uint = 1 << 1;
/// `VIR_DOMAIN_PAUSED` with the reason `VIR_DOMAIN_PAUSED_MIGRATION`.
const PAUSED_MIGRATION: (c_int, c_int) = (3, 2);
/// `VIR_DOMAIN_METADATA_ELEMENT`.
const METADATA_ELEMENT: c_int = 2;
/// `VIR_UUID_STRING_BUFLEN`.
const UUID_LENGTH: usize = 37;

/// `virConnectPtr` or `virDomainPtr`.
type Handle = *mut c_void;
/// `virErrorFunc`, with its `virErrorPtr`.
type ErrorFunction = unsafe extern "C" fn(*mut c_void, *mut c_void);

macro_rules! libvirt {
    ($( $field:ident = $symbol:literal ( $($type:ty),* ) $(-> $result:ty)?; )*) => {
        /// The functions of the library that are used.
        struct Functions {
            $( $field: unsafe extern "C" fn($($type),*) $(-> $result)?, )*
            _library: libloading::Library,
        }

        impl Functions {
            fn load(name: &str) -> Result<Self, libloading::Error> {
                // SAFETY: loading libvirt's library has no preconditions.
                let library = unsafe { libloading::Library::new(name) }?;
                Ok(Self {
                    $(
                        // SAFETY: the types are those of libvirt's headers for this symbol.
                        $field: *unsafe {
                            library.get::<unsafe extern "C" fn($($type),*) $(-> $result)?>(
                                concat!($symbol, "\0").as_bytes(),
                            )
                        }?,
                    )*
                    _library: library,
                })
            }
        }
    };
}

libvirt! {
    initialize = "virInitialize"() -> c_int;
    set_error_function = "virSetErrorFunc"(*mut c_void, Option<ErrorFunction>);
    last_error_code = "virGetLastErrorCode"() -> c_int;
    last_error_message = "virGetLastErrorMessage"() -> *const c_char;
    open = "virConnectOpen"(*const c_char) -> Handle;
    close = "virConnectClose"(Handle) -> c_int;
    connection_type = "virConnectGetType"(Handle) -> *const c_char;
    uri = "virConnectGetURI"(Handle) -> *mut c_char;
    all_domains = "virConnectListAllDomains"(Handle, *mut *mut Handle, c_uint) -> c_int;
    by_number = "virDomainLookupByID"(Handle, c_int) -> Handle;
    by_uuid = "virDomainLookupByUUIDString"(Handle, *const c_char) -> Handle;
    by_name = "virDomainLookupByName"(Handle, *const c_char) -> Handle;
    domain_free = "virDomainFree"(Handle) -> c_int;
    domain_name = "virDomainGetName"(Handle) -> *const c_char;
    domain_uuid = "virDomainGetUUIDString"(Handle, *mut c_char) -> c_int;
    domain_is_active = "virDomainIsActive"(Handle) -> c_int;
    domain_is_persistent = "virDomainIsPersistent"(Handle) -> c_int;
    domain_xml = "virDomainGetXMLDesc"(Handle, c_uint) -> *mut c_char;
    domain_state = "virDomainGetState"(Handle, *mut c_int, *mut c_int, c_uint) -> c_int;
    set_metadata = "virDomainSetMetadata"(Handle, c_int, *const c_char, *const c_char, *const c_char, c_uint) -> c_int;
    attach_device = "virDomainAttachDeviceFlags"(Handle, *const c_char, c_uint) -> c_int;
    detach_device = "virDomainDetachDeviceFlags"(Handle, *const c_char, c_uint) -> c_int;
}

/// Whether this machine has a usable libvirt library.
#[must_use]
pub fn is_installed() -> bool {
    Functions::load(LIBRARY).is_ok()
}

/// Replaces libvirt's default handler, which prints every error.
unsafe extern "C" fn print_nothing(_user: *mut c_void, _error: *mut c_void) {}

/// The part of a domain that a function applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The running domain.
    Live,
    /// The configuration with which it starts the next time.
    Config,
}

impl Scope {
    const fn affect(self) -> c_uint {
        match self {
            Self::Live => AFFECT_LIVE,
            Self::Config => AFFECT_CONFIG,
        }
    }
}

/// A connection to libvirt's daemon.
pub struct Connection {
    functions: Functions,
    handle: NonNull<c_void>,
}

impl Connection {
    /// Connects as virsh does: to `uri` or, without one, as libvirt's configuration and
    /// environment say.
    ///
    /// # Errors
    /// [`Error::Library`], [`Error::Connect`], or [`Error::Elsewhere`] for
    /// anything but a QEMU of this machine.
    pub fn open(uri: Option<&str>) -> Result<Self, Error> {
        Self::open_with(LIBRARY, uri)
    }

    fn open_with(library: &str, uri: Option<&str>) -> Result<Self, Error> {
        let functions = Functions::load(library).map_err(Error::Library)?;
        let uri = uri.map(text).transpose()?;
        let pointer = uri.as_ref().map_or(std::ptr::null(), |uri| uri.as_ptr());
        // SAFETY: the function lives as long as the process, initialization is the first
        // call, and the string is null or outlives the call.
        let handle = unsafe {
            (functions.set_error_function)(null_mut(), Some(print_nothing));
            match (functions.initialize)() {
                0 => (functions.open)(pointer),
                _ => null_mut(),
            }
        };
        let Some(handle) = NonNull::new(handle) else {
            let (_, message) = last_error(&functions);
            return Err(Error::Connect { message });
        };
        let connection = Self { functions, handle };
        connection.check_local()?;
        Ok(connection)
    }

    /// Refuses other machines and hypervisors: the device process and QEMU share memory and
    /// the path of a socket.
    fn check_local(&self) -> Result<(), Error> {
        // SAFETY: the connection is open, and the string is static in libvirt.
        let kind = unsafe { borrowed((self.functions.connection_type)(self.raw())) };
        let uri = self.uri();
        let host = uri.split_once("://").map_or("", |(_, rest)| rest);
        if kind.as_deref() == Some("QEMU") && host.starts_with('/') {
            Ok(())
        } else {
            Err(Error::Elsewhere { uri })
        }
    }

    /// Its URI, such as `qemu:///system`.
    #[must_use]
    pub fn uri(&self) -> String {
        // SAFETY: the connection is open; this code then owns the string.
        unsafe { taken((self.functions.uri)(self.raw())) }.unwrap_or_default()
    }

    /// Finds a domain as virsh does: by number, UUID or name.
    pub(crate) fn domain(&self, named: &str) -> Result<Domain<'_>, Error> {
        let name = text(named)?;
        let found = |handle| {
            NonNull::new(handle).map(|handle| Domain {
                connection: self,
                handle,
            })
        };
        if let Ok(number) = named.parse::<c_int>() {
            // SAFETY: the connection is open.
            let handle = unsafe { (self.functions.by_number)(self.raw(), number) };
            if let Some(domain) = found(handle) {
                return Ok(domain);
            }
        }
        for lookup in [self.functions.by_uuid, self.functions.by_name] {
            // SAFETY: the connection is open, the string outlives the call.
            let handle = unsafe { lookup(self.raw(), name.as_ptr()) };
            if let Some(domain) = found(handle) {
                return Ok(domain);
            }
        }
        match last_error(&self.functions) {
            (NO_DOMAIN, _) => Err(Error::NoDomain {
                domain: named.to_owned(),
                uri: self.uri(),
            }),
            (_, message) => Err(Error::Libvirt {
                action: "look for the domain",
                message,
            }),
        }
    }

    /// All domains, running or not.
    pub(crate) fn domains(&self) -> Result<Vec<Domain<'_>>, Error> {
        let mut list: *mut Handle = null_mut();
        // SAFETY: the connection is open, `list` outlives the call.
        let count = unsafe { (self.functions.all_domains)(self.raw(), &raw mut list, 0) };
        let Ok(count) = usize::try_from(count) else {
            return Err(self.failure("list the domains"));
        };
        let mut domains = Vec::with_capacity(count);
        if !list.is_null() {
            for index in 0..count {
                // SAFETY: libvirt says that the list has `count` domains, which this code
                // now owns.
                let handle = unsafe { *list.add(index) };
                domains.extend(NonNull::new(handle).map(|handle| Domain {
                    connection: self,
                    handle,
                }));
            }
            // SAFETY: this code owns the list, which is from malloc.
            unsafe { libc::free(list.cast()) };
        }
        Ok(domains)
    }

    fn raw(&self) -> Handle {
        self.handle.as_ptr()
    }

    fn failure(&self, action: &'static str) -> Error {
        let (_, message) = last_error(&self.functions);
        Error::Libvirt { action, message }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // SAFETY: the connection is open, and its domains, which borrow it, are gone.
        unsafe { (self.functions.close)(self.raw()) };
    }
}

/// A domain of a connection.
pub struct Domain<'connection> {
    connection: &'connection Connection,
    handle: NonNull<c_void>,
}

impl Domain<'_> {
    /// Its name.
    pub fn name(&self) -> String {
        // SAFETY: the domain lives, and its string is copied.
        unsafe { borrowed((self.functions().domain_name)(self.raw())) }.unwrap_or_default()
    }

    /// Its UUID in the usual form.
    pub fn uuid(&self) -> Result<String, Error> {
        let mut buffer = [0; UUID_LENGTH];
        // SAFETY: the domain lives, and the buffer has the length that the header requires.
        match unsafe { (self.functions().domain_uuid)(self.raw(), buffer.as_mut_ptr()) } {
            // SAFETY: libvirt wrote a string into the buffer.
            0 => Ok(unsafe { borrowed(buffer.as_ptr()) }.unwrap_or_default()),
            _ => Err(self.connection.failure("return the domain's UUID")),
        }
    }

    /// Whether it is running.
    pub fn is_active(&self) -> Result<bool, Error> {
        self.truth(self.functions().domain_is_active)
    }

    /// Whether it is paused by a migration, outgoing or incoming.
    pub fn is_on_its_way(&self) -> Result<bool, Error> {
        let (mut state, mut reason) = (0, 0);
        // SAFETY: the domain lives, both numbers outlive the call.
        let known = unsafe {
            (self.functions().domain_state)(self.raw(), &raw mut state, &raw mut reason, 0)
        };
        match known {
            0 => Ok((state, reason) == PAUSED_MIGRATION),
            _ => Err(self.connection.failure("return the domain's state")),
        }
    }

    /// Whether it has a configuration, which stays when it ends.
    pub fn is_persistent(&self) -> Result<bool, Error> {
        self.truth(self.functions().domain_is_persistent)
    }

    fn truth(&self, question: unsafe extern "C" fn(Handle) -> c_int) -> Result<bool, Error> {
        // SAFETY: the domain lives.
        match unsafe { question(self.raw()) } {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.connection.failure("return the domain's state")),
        }
    }

    /// Its XML description: of the running domain, or of its configuration.
    pub fn xml(&self, place: Scope) -> Result<String, Error> {
        let flags = match place {
            Scope::Live => 0,
            Scope::Config => XML_INACTIVE,
        };
        // SAFETY: the domain lives; this code then owns the string.
        unsafe { taken((self.functions().domain_xml)(self.raw(), flags)) }
            .ok_or_else(|| self.connection.failure("describe the domain"))
    }

    /// Adds a device.
    pub fn attach(&self, place: Scope, device: &str) -> Result<(), Error> {
        let function = self.functions().attach_device;
        self.change(function, place, device, "attach the device")
    }

    /// Sets the running domain's mark, or removes it.
    pub fn mark(&self, mark: Option<&str>) -> Result<(), Error> {
        let mark = mark.map(text).transpose()?;
        let (prefix, namespace) = (text(xml::PREFIX)?, text(xml::NAMESPACE)?);
        // SAFETY: the domain lives, the strings outlive the call; without an
        // element libvirt removes the one of the namespace.
        let set = unsafe {
            (self.functions().set_metadata)(
                self.raw(),
                METADATA_ELEMENT,
                mark.as_ref().map_or(std::ptr::null(), |mark| mark.as_ptr()),
                prefix.as_ptr(),
                namespace.as_ptr(),
                AFFECT_LIVE,
            )
        };
        match set {
            0 => Ok(()),
            _ => Err(self.connection.failure("mark the domain")),
        }
    }

    /// Removes a device. For a running domain, asks the guest to release it.
    pub fn detach(&self, place: Scope, device: &str) -> Result<(), Error> {
        let function = self.functions().detach_device;
        self.change(function, place, device, "detach the device")
    }

    fn change(
        &self,
        function: unsafe extern "C" fn(Handle, *const c_char, c_uint) -> c_int,
        place: Scope,
        device: &str,
        action: &'static str,
    ) -> Result<(), Error> {
        let device = text(device)?;
        // SAFETY: the domain lives, the string outlives the call.
        match unsafe { function(self.raw(), device.as_ptr(), place.affect()) } {
            0 => Ok(()),
            _ => Err(self.connection.failure(action)),
        }
    }

    fn functions(&self) -> &Functions {
        &self.connection.functions
    }

    fn raw(&self) -> Handle {
        self.handle.as_ptr()
    }
}

impl Drop for Domain<'_> {
    fn drop(&mut self) {
        // SAFETY: this value owns the handle, and the connection is still open.
        unsafe { (self.functions().domain_free)(self.raw()) };
    }
}

/// Converts text to a string for libvirt.
fn text(text: &str) -> Result<CString, Error> {
    CString::new(text).map_err(|_| Error::Libvirt {
        action: "accept the text",
        message: format!("{text:?} has a zero byte"),
    })
}

/// The code and the message of this thread's last error.
fn last_error(functions: &Functions) -> (c_int, String) {
    // SAFETY: both calls return the thread's own error, and the string is copied.
    unsafe {
        let message = borrowed((functions.last_error_message)());
        ((functions.last_error_code)(), message.unwrap_or_default())
    }
}

/// A copy of a string; `None` for null.
///
/// # Safety
/// `string` is null or a C string.
unsafe fn borrowed(string: *const c_char) -> Option<String> {
    if string.is_null() {
        return None;
    }
    // SAFETY: the caller upholds this.
    let string = unsafe { CStr::from_ptr(string) };
    Some(string.to_string_lossy().into_owned())
}

/// A copy of a string that libvirt allocated for the caller. Frees the original; `None` for
/// null.
///
/// # Safety
/// `string` is null, or a C string from malloc that this call may free.
unsafe fn taken(string: *mut c_char) -> Option<String> {
    // SAFETY: the caller upholds this.
    unsafe {
        let copy = borrowed(string);
        libc::free(string.cast());
        copy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_libvirt_says_so() {
        let said = Connection::open_with("libvirt-is-not-here.so.0", None);
        let said = said.err().unwrap().to_string();
        assert!(said.contains("libvirt0"), "{said}");
    }
}
