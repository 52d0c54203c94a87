use super::*;

fn changed(change: impl FnOnce(&mut Config)) -> Result<(), ConfigError> {
    let mut config = Config::default();
    change(&mut config);
    config.validate()
}

#[test]
fn the_defaults_are_valid() {
    let config = Config::default();
    config.validate().unwrap();
    assert_eq!(config.lease_ttl_min_seconds(), 2);
    assert_eq!(config.client_url(), "http://127.0.0.1:2379");
    assert_eq!(config.initial_cluster().unwrap(), [("default".to_owned(), "127.0.0.1:2380".to_owned())]);
    assert!(config.network_thread_count() >= 1);
}

#[test]
fn a_bad_address_says_what_is_expected() {
    for (file, expected) in [
        ("listen = \"nohost\"", "expected HOST:PORT, for example 127.0.0.1:2379"),
        ("listen = \"127.0.0.1:99999\"", "port 99999 is out of range"),
        ("peer-listen = \"localhost:2380\"", "expected an IP address and a port"),
    ] {
        let error = Config::from_toml(file).unwrap_err().to_string();
        assert!(error.contains(expected), "{file}: {error}");
    }
    let error = changed(|config| config.join = Some("a:99999".to_owned())).unwrap_err().to_string();
    assert_eq!(error, "--join = \"a:99999\": port 99999 is out of range: expected HOST:PORT with a port up to 65535");
    let error = changed(|config| config.advertise = Some("nohost".to_owned())).unwrap_err().to_string();
    assert_eq!(error, "--advertise = \"nohost\": expected HOST:PORT, for example 127.0.0.1:2379");
}

#[test]
fn a_member_that_never_had_a_leader_is_found_where_it_was() {
    let at = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
    let started = Config { listen: at(4001), peer_listen: at(4002), ..Config::default() };
    let member = |id, port: u16, client_urls: &[&str]| Member {
        id,
        name: format!("n{id}"),
        peer_urls: vec![format!("http://127.0.0.1:{port}")],
        client_urls: client_urls.iter().map(|url| (*url).to_owned()).collect(),
        learner: false,
    };
    let recalled = |kept: Option<Whereabouts>, own: Member| {
        let mut config = Config { unsaid: Unsaid { client: true, peer: true }, ..Config::default() };
        config.recall(1, &[own, member(2, 5002, &[])], kept).unwrap();
        (config.listen.port(), config.peer_listen.port(), config.advertise)
    };
    let kept = || Some(started.whereabouts());
    assert_eq!(recalled(None, member(1, 4002, &[])), (2379, 4002, None), "all that the log knows");
    assert_eq!(recalled(kept(), member(1, 4002, &[])), (4001, 4002, None));
    // An operator has changed its addresses: the other members look for it there.
    assert_eq!(recalled(kept(), member(1, 6002, &["http://127.0.0.1:6001"])), (6001, 6002, None));
    let named = Config { advertise: Some("host:9".to_owned()), ..started.clone() };
    let listed = member(1, 4002, &["http://host:9"]);
    assert_eq!(recalled(Some(named.whereabouts()), listed), (4001, 4002, Some("host:9".to_owned())));
}

#[test]
fn a_file_overrides_what_it_mentions() {
    let text = r#"
        name = "n1"
        listen = "127.0.0.1:4001"
        election-max = "2s"
        history-age = "10m"
        quota = "512MiB"
        [limits]
        request-bytes = "1MiB"
    "#;
    let config = Config::from_toml(text).unwrap();
    config.validate().unwrap();
    assert_eq!(config.listen.port(), 4001);
    assert_eq!(config.history_age, Duration::from_secs(600));
    assert_eq!(config.quota, 512 << 20);
    assert_eq!(config.limits.request_bytes, 1 << 20);
    assert_eq!(config.lease_ttl_min_seconds(), 3);
    assert_eq!(config.heartbeat, Config::default().heartbeat);
}

#[test]
fn what_is_written_reads_back() {
    let text = toml::to_string(&Config::default()).unwrap();
    assert_eq!(Config::from_toml(&text).unwrap(), Config::default());
}

#[test]
fn an_unknown_or_unreadable_setting_is_named() {
    for (text, named) in [("nmae = 'x'", "nmae"), ("tick = '10'", "ms, s, m or h"), ("tick = 10", "tick")] {
        let error = Config::from_toml(text).unwrap_err().to_string();
        assert!(error.contains(named), "{error}");
    }
}

#[test]
fn beyond_loopback_needs_insecure_and_an_address_to_be_found_at() {
    let anywhere = SocketAddr::from(([0, 0, 0, 0], 2379));
    assert!(matches!(changed(|c| c.listen = anywhere), Err(ConfigError::Insecure { setting: "--listen", .. })));
    assert!(matches!(
        changed(|c| {
            c.listen = anywhere;
            c.insecure = true;
        }),
        Err(ConfigError::Unadvertised { advertise: "--advertise", .. })
    ));
    changed(|c| {
        c.listen = anywhere;
        c.insecure = true;
        c.advertise = Some("lock-1.example:2379".to_owned());
    })
    .unwrap();
    changed(|c| c.listen = "[::1]:2379".parse().unwrap()).unwrap();
    changed(|c| c.listen = "[::ffff:127.0.0.1]:2379".parse().unwrap()).unwrap();
}

#[test]
fn a_cluster_has_to_name_this_member_once() {
    let cluster = |text: &str| changed(|c| c.cluster = Some(text.to_owned()));
    cluster("default=127.0.0.1:2380,n2=127.0.0.1:2381").unwrap();
    assert!(matches!(cluster("n1=127.0.0.1:2380"), Err(ConfigError::NotInCluster { .. })));
    assert!(matches!(cluster("default=a:1,default=b:2"), Err(ConfigError::TwiceInCluster(_))));
    for bad in ["default", "default=", "default=host", "=a:1", "default=http://a:1"] {
        assert!(matches!(cluster(bad), Err(ConfigError::Cluster(_))), "{bad}");
    }
    assert_eq!(
        changed(|c| {
            c.cluster = Some("default=a:1".to_owned());
            c.join = Some("b:2".to_owned());
        }),
        Err(ConfigError::ClusterAndJoin)
    );
}

#[test]
fn a_member_has_to_listen_where_the_cluster_looks_for_it() {
    let at = |cluster: &str, listen: &str, advertise: Option<&str>| {
        changed(|c| {
            c.insecure = true;
            c.cluster = Some(cluster.to_owned());
            c.peer_listen = listen.parse().unwrap();
            c.peer_advertise = advertise.map(str::to_owned);
        })
    };
    at("default=10.0.0.1:2380", "10.0.0.1:2380", None).unwrap();
    at("default=10.0.0.1:2380", "0.0.0.0:2380", None).unwrap();
    at("default=n1.example:2380", "127.0.0.1:2380", None).unwrap();
    at("default=10.0.0.1:7000", "127.0.0.1:2380", Some("10.0.0.1:7000")).unwrap();
    for (cluster, listen) in [
        ("default=10.0.0.1:2380", "127.0.0.1:2380"),
        ("default=10.0.0.1:2381", "10.0.0.1:2380"),
        ("default=10.0.0.1:2381", "0.0.0.0:2380"),
        ("default=n1.example:2381", "127.0.0.1:2380"),
    ] {
        let error = at(cluster, listen, None).unwrap_err();
        assert!(matches!(error, ConfigError::OwnAddress { .. }), "{error}");
    }
}

#[test]
fn a_member_that_starts_again_keeps_the_addresses_it_had() {
    let member = |id, client: &str, peer: &str| Member {
        id,
        name: format!("n{id}"),
        client_urls: vec![format!("http://{client}")],
        peer_urls: vec![format!("http://{peer}")],
        learner: false,
    };
    let members = [member(1, "10.0.0.1:4001", "10.0.0.1:4002"), member(2, "a:1", "b:2")];
    let recalled = |own: MemberId, members: &[Member], unsaid: Unsaid| {
        let mut config = Config { unsaid, ..Config::default() };
        config.recall(own, members, None).map(|()| (config.listen.to_string(), config.peer_listen.to_string()))
    };
    let at = |client: &str, peer: &str| Ok((client.to_owned(), peer.to_owned()));
    let both = Unsaid { client: true, peer: true };
    assert_eq!(recalled(1, &members, both), at("10.0.0.1:4001", "10.0.0.1:4002"));
    assert_eq!(recalled(1, &members, Unsaid { client: true, peer: false }), at("10.0.0.1:4001", "127.0.0.1:2380"));
    assert_eq!(recalled(1, &members, Unsaid::default()), at("127.0.0.1:2379", "127.0.0.1:2380"));
    // A member that is alone, or that the list does not name, keeps the defaults.
    assert_eq!(recalled(1, &members[..1], both), at("127.0.0.1:2379", "127.0.0.1:2380"));
    assert_eq!(recalled(9, &members, both), at("127.0.0.1:2379", "127.0.0.1:2380"));
    let error = recalled(2, &members, both).unwrap_err();
    assert_eq!(error, ConfigError::Whereabouts { setting: "--listen", address: "a:1".to_owned() });
}

#[test]
fn nobody_is_found_everywhere() {
    for (setting, result) in [
        ("--advertise", changed(|c| c.advertise = Some("0.0.0.0:2379".to_owned()))),
        ("--peer-advertise", changed(|c| c.peer_advertise = Some("[::]:2380".to_owned()))),
    ] {
        let error = result.unwrap_err();
        assert!(matches!(&error, ConfigError::Everywhere { setting: named, .. } if *named == setting), "{error}");
    }
}

#[test]
fn a_learner_is_one_that_joins() {
    assert_eq!(changed(|c| c.learner = true), Err(ConfigError::LearnerAlone));
    changed(|c| {
        c.learner = true;
        c.join = Some("127.0.0.1:4000".to_owned());
    })
    .unwrap();
}

#[test]
fn addresses_may_be_given_as_etcd_has_them() {
    let text = |text: &str| Some(text.to_owned());
    let config = Config {
        advertise: text("http://a:1"),
        peer_advertise: text("http://b:2"),
        join: text("http://c:3"),
        cluster: text("n1=http://d:4,n2=e:5,n3=https://f:6"),
        ..Config::default()
    };
    let config = config.without_schemes();
    assert_eq!([config.advertise, config.peer_advertise, config.join], [text("a:1"), text("b:2"), text("c:3")]);
    // Members speak no TLS yet: this address stays as it is.
    assert_eq!(config.cluster, text("n1=d:4,n2=e:5,n3=https://f:6"));
}

#[test]
fn times_that_cannot_work_are_refused() {
    let ms = Duration::from_millis;
    for result in [
        changed(|c| c.tick = Duration::ZERO),
        changed(|c| c.heartbeat = ms(5)),
        changed(|c| c.heartbeat = ms(200)),
        changed(|c| c.election_max = c.election_min),
        changed(|c| c.election_max = ms(90_000)),
        changed(|c| c.call_timeout = ms(100)),
        changed(|c| c.keepalive_interval = ms(100)),
    ] {
        assert!(matches!(result, Err(ConfigError::Times { .. })), "{result:?}");
    }
}

#[test]
fn limits_stay_within_reason() {
    for result in [
        changed(|c| c.limits.request_bytes = 0),
        changed(|c| c.limits.transaction_operations = 129),
        changed(|c| c.limits.streams_per_connection = 0),
        changed(|c| c.limits.inflight_bytes = 1),
        changed(|c| c.network_threads = 100_000),
    ] {
        assert!(matches!(result, Err(ConfigError::Range { .. })), "{result:?}");
    }
}

#[test]
fn names_and_origins_are_checked() {
    assert!(matches!(changed(|c| c.name = String::new()), Err(ConfigError::Empty { .. })));
    assert!(matches!(changed(|c| c.name = "a,b".to_owned()), Err(ConfigError::Name(_))));
    changed(|c| c.web_origins = vec!["*".to_owned(), "https://page.example:8443".to_owned()]).unwrap();
    for bad in ["page.example", "https://", "https://a/b", "https://*.example"] {
        assert!(matches!(changed(|c| c.web_origins = vec![bad.to_owned()]), Err(ConfigError::Origin(_))), "{bad}");
    }
}

#[test]
fn the_version_suits_kubernetes() {
    let numbers: Vec<u32> = ETCD_VERSION.split('.').map(|number| number.parse().unwrap()).collect();
    assert!(numbers.as_slice() >= [3, 5, 13].as_slice());
}
