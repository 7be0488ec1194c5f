//! Interfaces, addresses and routes of one network namespace, by route netlink.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, BorrowedFd};

use futures::TryStreamExt;
use nft::Ipv4Prefix;
use nix::libc;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::address::AddressAttribute;
use rtnetlink::packet_route::link::{InfoData, InfoVeth, LinkAttribute, LinkMessage};
use rtnetlink::packet_route::route::RouteScope;
use rtnetlink::{Handle, LinkBridge, LinkBridgePort, LinkMessageBuilder, LinkUnspec, LinkVeth, RouteMessageBuilder};

use crate::NetworkError;

/// An open route socket; it belongs to the namespace of the thread that opened it.
#[derive(Clone)]
pub(crate) struct Links {
    handle: Handle,
}

fn failed(step: &'static str, name: &str) -> impl FnOnce(rtnetlink::Error) -> NetworkError {
    move |source| NetworkError::Link { step, name: name.to_owned(), source: Box::new(source) }
}

fn is(error: &rtnetlink::Error, errno: i32) -> bool {
    matches!(error, rtnetlink::Error::NetlinkError(message) if message.raw_code() == -errno)
}

/// The same address always has the same MAC, so that neighbours' caches stay true when an address gets a new pod.
pub(crate) fn mac_of(address: Ipv4Addr) -> [u8; 6] {
    let [a, b, c, d] = address.octets();
    [0x0a, 0x58, a, b, c, d]
}

impl Links {
    pub(crate) fn open() -> Result<Self, NetworkError> {
        let (connection, handle, _) = rtnetlink::new_connection().map_err(NetworkError::Socket)?;
        tokio::spawn(connection);
        Ok(Self { handle })
    }

    pub(crate) async fn find(&self, name: &str) -> Result<Option<LinkMessage>, NetworkError> {
        let mut links = Box::pin(self.handle.link().get().match_name(name).execute());
        match links.try_next().await {
            Ok(link) => Ok(link),
            Err(error) if is(&error, libc::ENODEV) => Ok(None),
            Err(error) => Err(failed("look up", name)(error)),
        }
    }

    pub(crate) async fn index(&self, name: &str) -> Result<u32, NetworkError> {
        let link = self.find(name).await?;
        link.map(|link| link.header.index).ok_or_else(|| NetworkError::Missing(name.to_owned()))
    }

    /// Creates or adopts the bridge, brings it up, and leaves `gateway` as its only IPv4 address.
    pub(crate) async fn bridge(
        &self,
        name: &str,
        gateway: Ipv4Addr,
        prefix: Ipv4Prefix,
        mtu: u32,
    ) -> Result<u32, NetworkError> {
        // Without a MAC of its own a bridge takes one of its ports', and changes it as ports come and go.
        let message = LinkBridge::new(name).address(mac_of(gateway).into()).mtu(mtu).mcast_snooping(false).up().build();
        match self.handle.link().add(message).execute().await {
            Ok(()) => (),
            Err(error) if is(&error, libc::EEXIST) => (),
            Err(error) => return Err(failed("create bridge", name)(error)),
        }
        let index = self.index(name).await?;
        let message = LinkUnspec::new_with_index(index).address(mac_of(gateway).into()).mtu(mtu).up().build();
        self.handle.link().set(message).execute().await.map_err(failed("set up bridge", name))?;
        for address in self.addresses(index).await? {
            let keep = address.attributes.contains(&AddressAttribute::Address(gateway.into()))
                && address.header.prefix_len == prefix.length();
            if !keep {
                self.handle.address().del(address).execute().await.map_err(failed("remove an address of", name))?;
            }
        }
        self.address(index, name, gateway, prefix.length()).await?;
        Ok(index)
    }

    /// A veth pair with one end here and the other, `inner`, already inside `namespace`.
    pub(crate) async fn veth(
        &self,
        name: &str,
        bridge: u32,
        inner: &str,
        mac: [u8; 6],
        mtu: u32,
        namespace: BorrowedFd<'_>,
    ) -> Result<(), NetworkError> {
        let peer =
            LinkUnspec::new_with_name(inner).address(mac.into()).mtu(mtu).setns_by_fd(namespace.as_raw_fd()).build();
        let message = LinkVeth::new(name, inner)
            .set_info_data(InfoData::Veth(InfoVeth::Peer(peer)))
            .mtu(mtu)
            .controller(bridge)
            .up()
            .build();
        self.handle.link().add(message).execute().await.map_err(failed("create veth", name))?;
        self.hairpin(name).await
    }

    /// Where bridge netfilter is on, what is translated for a pod on the bridge is switched to it at once, back through the port it
    /// came from if the pod reaches itself.
    async fn hairpin(&self, name: &str) -> Result<(), NetworkError> {
        let index = self.index(name).await?;
        let message = LinkBridgePort::new(index).hairpin(true).build();
        self.handle.link().set_port(message).execute().await.map_err(failed("set up bridge port", name))
    }

    /// Nothing happens if it is not there.
    pub(crate) async fn delete(&self, name: &str) -> Result<(), NetworkError> {
        let message = LinkUnspec::new_with_name(name).build();
        match self.handle.link().del_with_message(message).execute().await {
            Err(error) if !is(&error, libc::ENODEV) => Err(failed("delete", name)(error)),
            _ => Ok(()),
        }
    }

    pub(crate) async fn up(&self, name: &str) -> Result<u32, NetworkError> {
        let index = self.index(name).await?;
        let message = LinkMessageBuilder::<LinkUnspec>::default().index(index).up().build();
        self.handle.link().set(message).execute().await.map_err(failed("bring up", name))?;
        Ok(index)
    }

    pub(crate) async fn address(
        &self,
        index: u32,
        name: &str,
        address: Ipv4Addr,
        length: u8,
    ) -> Result<(), NetworkError> {
        let request = self.handle.address().add(index, IpAddr::V4(address), length).replace();
        request.execute().await.map_err(failed("give an address to", name))
    }

    pub(crate) async fn has_address(&self, index: u32, address: Ipv4Addr) -> Result<bool, NetworkError> {
        let wanted = AddressAttribute::Address(address.into());
        Ok(self.addresses(index).await?.iter().any(|known| known.attributes.contains(&wanted)))
    }

    async fn addresses(
        &self,
        index: u32,
    ) -> Result<Vec<rtnetlink::packet_route::address::AddressMessage>, NetworkError> {
        let addresses = self.handle.address().get().set_link_index_filter(index).execute();
        let addresses: Vec<_> =
            addresses.try_collect().await.map_err(failed("list addresses of", &index.to_string()))?;
        let is_ipv4 = |family| family == AddressFamily::Inet;
        Ok(addresses.into_iter().filter(|address| is_ipv4(address.header.family)).collect())
    }

    /// `destination` is on the link itself.
    pub(crate) async fn link_route(
        &self,
        index: u32,
        destination: Ipv4Prefix,
        source: Option<Ipv4Addr>,
    ) -> Result<(), NetworkError> {
        let mut route = RouteMessageBuilder::<Ipv4Addr>::new()
            .destination_prefix(destination.address(), destination.length())
            .output_interface(index)
            .scope(RouteScope::Link);
        if let Some(source) = source {
            route = route.pref_source(source);
        }
        let request = self.handle.route().add(route.build()).replace();
        request.execute().await.map_err(failed("add a route to", &destination.to_string()))
    }

    pub(crate) async fn default_route(&self, index: u32, gateway: Ipv4Addr) -> Result<(), NetworkError> {
        let route = RouteMessageBuilder::<Ipv4Addr>::new().gateway(gateway).output_interface(index).build();
        let request = self.handle.route().add(route).replace();
        request.execute().await.map_err(failed("add the default route via", &gateway.to_string()))
    }

    /// The MTU of the default route's interface, which pods share unless told otherwise.
    pub(crate) async fn default_mtu(&self) -> Result<Option<u32>, NetworkError> {
        let routes = self.handle.route().get(RouteMessageBuilder::<Ipv4Addr>::new().build()).execute();
        let routes: Vec<_> = routes.try_collect().await.map_err(failed("list", "routes"))?;
        let default = routes.into_iter().find(|route| route.header.destination_prefix_length == 0);
        let index = default.into_iter().flat_map(|route| route.attributes).find_map(|attribute| match attribute {
            rtnetlink::packet_route::route::RouteAttribute::Oif(index) => Some(index),
            _ => None,
        });
        let Some(index) = index else { return Ok(None) };
        let mut links = Box::pin(self.handle.link().get().match_index(index).execute());
        let link = links.try_next().await.map_err(failed("look up", "the default route's interface"))?;
        let mtu = |attribute: LinkAttribute| if let LinkAttribute::Mtu(mtu) = attribute { Some(mtu) } else { None };
        Ok(link.and_then(|link| link.attributes.into_iter().find_map(mtu)))
    }
}
