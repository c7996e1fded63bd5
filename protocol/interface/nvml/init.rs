//! Initialization and shutdown.

/// Returns the description of a result code.
#[by_hand]
fn nvmlErrorString(result: c_uint) -> *const c_char;

/// Counts a user. The first call checks that a host answers.
#[also(nvmlInit = 0)]
#[before_init]
fn nvmlInit_v2();

/// As nvmlInit_v2, with flags.
#[before_init]
fn nvmlInitWithFlags(flags: c_uint);

/// Releases one user of nvmlInit_v2.
fn nvmlShutdown();
