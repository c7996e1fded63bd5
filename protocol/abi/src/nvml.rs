//! NVML's fields of links (`nvmlDeviceGetFieldValues`). The other fields that are served
//! are those that a function of NVML also answers.

/// The number by which the host is asked for a field of a link. It is beyond those of
/// NVML's functions. The arguments are the field, one of [`LINK_FIELDS`], and its scope;
/// the values are an nvmlValueType_t and the value.
pub const FIELD: u32 = 256;

/// NVML_FI_DEV_NVLINK_…: links' speeds, their number, and a link's speed, state and
/// version.
pub const LINK_FIELDS: [u8; 17] = [
    84, 85, 86, 87, 88, 89, 90, 91, 132, 133, 134, 135, 136, 137, 164, 165, 166,
];
