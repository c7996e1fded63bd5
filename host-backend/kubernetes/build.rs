//! Derives servers and clients for the calls of the kubelet and of KubeVirt. Their messages
//! are declared in `src/grpc.rs`: compiling `.proto` files would need half a minute of
//! dependencies for a hundred lines.

use tonic_build::manual::{Builder, Method, Service};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let callbacks = |package| {
        let service = Service::builder().package(package).name("Callbacks");
        service.method(method(
            "OnDefineDomain",
            "OnDefineDomainParams",
            "OnDefineDomainResult",
        ))
    };
    let shutdown = method("Shutdown", "ShutdownParams", "ShutdownResult");
    // Only tests connect as clients, over channels of their own.
    Builder::new().build_transport(false).compile(&[
        Service::builder()
            .package("k8s.io.kubelet.pkg.apis.dra.v1")
            .name("DRAPlugin")
            .method(method(
                "NodePrepareResources",
                "NodePrepareResourcesRequest",
                "NodePrepareResourcesResponse",
            ))
            .method(method(
                "NodeUnprepareResources",
                "NodeUnprepareResourcesRequest",
                "NodeUnprepareResourcesResponse",
            ))
            .build(),
        Service::builder()
            .package("pluginregistration")
            .name("Registration")
            .method(method("GetInfo", "InfoRequest", "PluginInfo"))
            .method(method(
                "NotifyRegistrationStatus",
                "RegistrationStatus",
                "RegistrationStatusResponse",
            ))
            .build(),
        Service::builder()
            .package("kubevirt.hooks.info")
            .name("Info")
            .method(method("Info", "InfoParams", "InfoResult"))
            .build(),
        callbacks("kubevirt.hooks.v1alpha1").build(),
        callbacks("kubevirt.hooks.v1alpha2").build(),
        callbacks("kubevirt.hooks.v1alpha3")
            .method(shutdown)
            .build(),
    ]);
}

/// A method whose messages are in the module that includes the service.
fn method(route: &str, request: &str, response: &str) -> Method {
    let mut name = String::new();
    for letter in route.chars() {
        if letter.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(letter.to_ascii_lowercase());
    }
    Method::builder()
        .name(name)
        .route_name(route)
        .input_type(format!("super::{request}"))
        .output_type(format!("super::{response}"))
        .codec_path("tonic_prost::ProstCodec")
        .build()
}
