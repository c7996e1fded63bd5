//! Start and end.

/// A result code in words.
#[by_hand]
fn nvmlErrorString(result: c_uint) -> *const c_char;

/// Counts a user; the first checks that a host answers.
#[also(nvmlInit = 0)]
#[before_init]
fn nvmlInit_v2();

/// The same, with flags.
#[before_init]
fn nvmlInitWithFlags(flags: c_uint);

/// Ends one user's nvmlInit.
fn nvmlShutdown();
