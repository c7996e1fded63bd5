//! Maximum extents of arrays (CUDA Driver API, cuArray3DCreate and cuMipmappedArrayCreate).

use paragpu_abi::{
    CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_LAYERED_LAYERS as SURFACE_1D_LAYERS,
    CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_LAYERED_WIDTH as SURFACE_1D_LAYERED_WIDTH,
    CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_WIDTH as SURFACE_1D_WIDTH,
    CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_HEIGHT as SURFACE_2D_HEIGHT,
    CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_HEIGHT as SURFACE_2D_LAYERED_HEIGHT,
    CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_LAYERS as SURFACE_2D_LAYERS,
    CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_WIDTH as SURFACE_2D_LAYERED_WIDTH,
    CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_WIDTH as SURFACE_2D_WIDTH,
    CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_DEPTH as SURFACE_3D_DEPTH,
    CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_HEIGHT as SURFACE_3D_HEIGHT,
    CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_WIDTH as SURFACE_3D_WIDTH,
    CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_LAYERED_LAYERS as SURFACE_CUBE_LAYERS,
    CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_LAYERED_WIDTH as SURFACE_CUBE_LAYERED_WIDTH,
    CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_WIDTH as SURFACE_CUBE_WIDTH,
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_LAYERS as TEXTURE_1D_LAYERS,
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_WIDTH as TEXTURE_1D_LAYERED_WIDTH,
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_MIPMAPPED_WIDTH as MIPMAP_1D_WIDTH,
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_WIDTH as TEXTURE_1D_WIDTH,
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_GATHER_HEIGHT as GATHER_HEIGHT,
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_GATHER_WIDTH as GATHER_WIDTH,
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_HEIGHT as TEXTURE_2D_HEIGHT,
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_HEIGHT as TEXTURE_2D_LAYERED_HEIGHT,
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_LAYERS as TEXTURE_2D_LAYERS,
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_WIDTH as TEXTURE_2D_LAYERED_WIDTH,
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_MIPMAPPED_HEIGHT as MIPMAP_2D_HEIGHT,
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_MIPMAPPED_WIDTH as MIPMAP_2D_WIDTH,
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_WIDTH as TEXTURE_2D_WIDTH,
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH as TEXTURE_3D_DEPTH,
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH_ALTERNATE as ALTERNATE_DEPTH,
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT as TEXTURE_3D_HEIGHT,
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT_ALTERNATE as ALTERNATE_HEIGHT,
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH as TEXTURE_3D_WIDTH,
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH_ALTERNATE as ALTERNATE_WIDTH,
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_LAYERED_LAYERS as TEXTURE_CUBE_LAYERS,
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_LAYERED_WIDTH as TEXTURE_CUBE_LAYERED_WIDTH,
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_WIDTH as TEXTURE_CUBE_WIDTH, CUDA_ARRAY3D_CUBEMAP,
    CUDA_ARRAY3D_LAYERED, CUDA_ARRAY3D_SURFACE_LDST, CUDA_ARRAY3D_TEXTURE_GATHER,
};
use paragpu_protocol::types::ArrayShape;

/// Attributes of the device: the maximum width, height and depth. 0 is no limit.
type Maxima = [i32; 3];

/// The dimensions of an array.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    One,
    Two,
    Three,
    OneLayered,
    TwoLayered,
    Cube,
    CubeLayered,
}

impl Kind {
    fn of(shape: &ArrayShape) -> Self {
        let is = |flag| shape.flags & flag != 0;
        match (is(CUDA_ARRAY3D_CUBEMAP), is(CUDA_ARRAY3D_LAYERED)) {
            (true, true) => Self::CubeLayered,
            (true, false) => Self::Cube,
            (false, true) if shape.height > 0 => Self::TwoLayered,
            (false, true) => Self::OneLayered,
            _ if shape.depth > 0 => Self::Three,
            _ if shape.height > 0 => Self::Two,
            _ => Self::One,
        }
    }

    fn of_surface(self) -> Maxima {
        match self {
            Self::One => [SURFACE_1D_WIDTH, 0, 0],
            Self::Two => [SURFACE_2D_WIDTH, SURFACE_2D_HEIGHT, 0],
            Self::Three => [SURFACE_3D_WIDTH, SURFACE_3D_HEIGHT, SURFACE_3D_DEPTH],
            Self::OneLayered => [SURFACE_1D_LAYERED_WIDTH, 0, SURFACE_1D_LAYERS],
            Self::TwoLayered => [
                SURFACE_2D_LAYERED_WIDTH,
                SURFACE_2D_LAYERED_HEIGHT,
                SURFACE_2D_LAYERS,
            ],
            Self::Cube => [SURFACE_CUBE_WIDTH, SURFACE_CUBE_WIDTH, 0],
            Self::CubeLayered => [
                SURFACE_CUBE_LAYERED_WIDTH,
                SURFACE_CUBE_LAYERED_WIDTH,
                SURFACE_CUBE_LAYERS,
            ],
        }
    }

    fn of_texture(self, is_mipmap: bool) -> Maxima {
        match self {
            Self::One if is_mipmap => [MIPMAP_1D_WIDTH, 0, 0],
            Self::One => [TEXTURE_1D_WIDTH, 0, 0],
            Self::Two if is_mipmap => [MIPMAP_2D_WIDTH, MIPMAP_2D_HEIGHT, 0],
            Self::Two => [TEXTURE_2D_WIDTH, TEXTURE_2D_HEIGHT, 0],
            Self::Three => [TEXTURE_3D_WIDTH, TEXTURE_3D_HEIGHT, TEXTURE_3D_DEPTH],
            Self::OneLayered => [TEXTURE_1D_LAYERED_WIDTH, 0, TEXTURE_1D_LAYERS],
            Self::TwoLayered => [
                TEXTURE_2D_LAYERED_WIDTH,
                TEXTURE_2D_LAYERED_HEIGHT,
                TEXTURE_2D_LAYERS,
            ],
            Self::Cube => [TEXTURE_CUBE_WIDTH, TEXTURE_CUBE_WIDTH, 0],
            Self::CubeLayered => [
                TEXTURE_CUBE_LAYERED_WIDTH,
                TEXTURE_CUBE_LAYERED_WIDTH,
                TEXTURE_CUBE_LAYERS,
            ],
        }
    }
}

/// Whether a device can have such an array. `attribute` gets the device's attributes.
pub(crate) fn fits(shape: &ArrayShape, attribute: impl Fn(i32) -> Option<i32>) -> bool {
    let kind = Kind::of(shape);
    let is_within = |maxima: Maxima| {
        let extent = [shape.width, shape.height, shape.depth];
        extent.into_iter().zip(maxima).all(|(size, which)| {
            let most = attribute(which).and_then(|most| u64::try_from(most).ok());
            most.is_none_or(|most| most == 0 || size <= most)
        })
    };
    let is = |flag| shape.flags & flag != 0;
    let alternate = [ALTERNATE_WIDTH, ALTERNATE_HEIGHT, ALTERNATE_DEPTH];
    let gathers = is(CUDA_ARRAY3D_TEXTURE_GATHER);
    // Only 2D arrays have texture gather.
    if gathers && matches!(kind, Kind::One | Kind::Three) {
        return false;
    }
    (is_within(kind.of_texture(shape.levels > 0)) || kind == Kind::Three && is_within(alternate))
        && (!gathers || is_within([GATHER_WIDTH, GATHER_HEIGHT, 0]))
        && (!is(CUDA_ARRAY3D_SURFACE_LDST) || is_within(kind.of_surface()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(which: i32) -> Option<i32> {
        match which {
            TEXTURE_1D_WIDTH => Some(100),
            MIPMAP_1D_WIDTH => Some(10),
            TEXTURE_2D_WIDTH | TEXTURE_2D_HEIGHT => Some(80),
            GATHER_WIDTH | GATHER_HEIGHT => Some(40),
            SURFACE_2D_WIDTH | SURFACE_2D_HEIGHT => Some(20),
            TEXTURE_3D_WIDTH | TEXTURE_3D_HEIGHT | TEXTURE_3D_DEPTH => Some(8),
            ALTERNATE_WIDTH | ALTERNATE_HEIGHT => Some(4),
            ALTERNATE_DEPTH => Some(16),
            TEXTURE_2D_LAYERS => Some(7),
            TEXTURE_CUBE_WIDTH => Some(5),
            _ => None,
        }
    }

    #[test]
    fn extents_are_within_those_of_the_device() {
        const GATHER: u32 = CUDA_ARRAY3D_TEXTURE_GATHER;
        const SURFACE: u32 = CUDA_ARRAY3D_SURFACE_LDST;
        for ([width, height, depth], flags, levels, is_possible) in [
            ([100, 0, 0], 0, 0, true),
            ([101, 0, 0], 0, 0, false),
            ([11, 0, 0], 0, 1, false),
            ([80, 80, 0], 0, 0, true),
            ([81, 1, 0], 0, 0, false),
            ([1, 81, 0], 0, 0, false),
            ([40, 40, 0], GATHER, 0, true),
            ([40, 41, 0], GATHER, 0, false),
            ([4, 4, 4], GATHER, 0, false),
            ([4, 0, 0], GATHER, 0, false),
            ([20, 20, 0], SURFACE, 0, true),
            ([21, 20, 0], SURFACE, 0, false),
            ([8, 8, 8], 0, 0, true),
            ([4, 4, 16], 0, 0, true),
            ([8, 4, 16], 0, 0, false),
            ([900, 900, 7], CUDA_ARRAY3D_LAYERED, 0, true),
            ([1, 1, 8], CUDA_ARRAY3D_LAYERED, 0, false),
            ([5, 5, 6], CUDA_ARRAY3D_CUBEMAP, 0, true),
            ([6, 6, 6], CUDA_ARRAY3D_CUBEMAP, 0, false),
        ] {
            let shape = ArrayShape {
                width,
                height,
                depth,
                format: 0x20,
                channels: 1,
                flags,
                levels,
            };
            let fits = fits(&shape, attribute);
            assert_eq!(fits, is_possible, "{width} {height} {depth} {flags}");
        }
    }
}
