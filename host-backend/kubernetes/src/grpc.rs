//! The gRPC interfaces of the kubelet and of KubeVirt, as far as this crate serves them.
//! Names and tags are theirs.
#![allow(missing_docs, reason = "names of others, and generated code")]

/// The kubelet's interface of drivers of dynamic resource allocation, version 1.
pub mod dra {
    use std::collections::HashMap;

    include!(concat!(
        env!("OUT_DIR"),
        "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin.rs"
    ));
    pub use d_r_a_plugin_client::DRAPluginClient;
    pub use d_r_a_plugin_server::{DRAPlugin, DRAPluginServer};

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Claim {
        #[prost(string, tag = "1")]
        pub namespace: String,
        #[prost(string, tag = "2")]
        pub uid: String,
        #[prost(string, tag = "3")]
        pub name: String,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct NodePrepareResourcesRequest {
        #[prost(message, repeated, tag = "1")]
        pub claims: Vec<Claim>,
    }

    /// By the claim's uid.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct NodePrepareResourcesResponse {
        #[prost(map = "string, message", tag = "1")]
        pub claims: HashMap<String, NodePrepareResourceResponse>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct NodePrepareResourceResponse {
        #[prost(message, repeated, tag = "1")]
        pub devices: Vec<Device>,
        #[prost(string, tag = "2")]
        pub error: String,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Device {
        #[prost(string, repeated, tag = "1")]
        pub request_names: Vec<String>,
        #[prost(string, tag = "2")]
        pub pool_name: String,
        #[prost(string, tag = "3")]
        pub device_name: String,
        #[prost(string, repeated, tag = "4")]
        pub cdi_device_ids: Vec<String>,
        #[prost(string, optional, tag = "5")]
        pub share_id: Option<String>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct NodeUnprepareResourcesRequest {
        #[prost(message, repeated, tag = "1")]
        pub claims: Vec<Claim>,
    }

    /// By the claim's uid.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct NodeUnprepareResourcesResponse {
        #[prost(map = "string, message", tag = "1")]
        pub claims: HashMap<String, NodeUnprepareResourceResponse>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct NodeUnprepareResourceResponse {
        #[prost(string, tag = "1")]
        pub error: String,
    }
}

/// The kubelet's interface of plugin registration, version 1.
pub mod registration {
    include!(concat!(
        env!("OUT_DIR"),
        "/pluginregistration.Registration.rs"
    ));

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub struct InfoRequest {}

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct PluginInfo {
        #[prost(string, tag = "1")]
        pub r#type: String,
        #[prost(string, tag = "2")]
        pub name: String,
        #[prost(string, tag = "3")]
        pub endpoint: String,
        #[prost(string, repeated, tag = "4")]
        pub supported_versions: Vec<String>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct RegistrationStatus {
        #[prost(bool, tag = "1")]
        pub plugin_registered: bool,
        #[prost(string, tag = "2")]
        pub error: String,
    }

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub struct RegistrationStatusResponse {}
}

/// The interface with which KubeVirt's virt-launcher identifies hooks.
pub mod info {
    include!(concat!(env!("OUT_DIR"), "/kubevirt.hooks.info.Info.rs"));

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub struct InfoParams {}

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct InfoResult {
        #[prost(string, tag = "1")]
        pub name: String,
        #[prost(message, repeated, tag = "3")]
        pub hook_points: Vec<HookPoint>,
        #[prost(string, repeated, tag = "4")]
        pub versions: Vec<String>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct HookPoint {
        #[prost(string, tag = "1")]
        pub name: String,
        #[prost(int32, tag = "2")]
        pub priority: i32,
    }
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct OnDefineDomainParams {
    #[prost(bytes = "vec", tag = "1")]
    pub domain_xml: Vec<u8>,
    /// JSON.
    #[prost(bytes = "vec", tag = "2")]
    pub vmi: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct OnDefineDomainResult {
    #[prost(bytes = "vec", tag = "1")]
    pub domain_xml: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct ShutdownParams {}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct ShutdownResult {}

/// The calls of virt-launcher, first version.
pub mod v1alpha1 {
    use super::{OnDefineDomainParams, OnDefineDomainResult};

    include!(concat!(
        env!("OUT_DIR"),
        "/kubevirt.hooks.v1alpha1.Callbacks.rs"
    ));
}

/// The calls of virt-launcher, second version.
pub mod v1alpha2 {
    use super::{OnDefineDomainParams, OnDefineDomainResult};

    include!(concat!(
        env!("OUT_DIR"),
        "/kubevirt.hooks.v1alpha2.Callbacks.rs"
    ));
}

/// The calls of virt-launcher, third version.
pub mod v1alpha3 {
    use super::{OnDefineDomainParams, OnDefineDomainResult, ShutdownParams, ShutdownResult};

    include!(concat!(
        env!("OUT_DIR"),
        "/kubevirt.hooks.v1alpha3.Callbacks.rs"
    ));
}
