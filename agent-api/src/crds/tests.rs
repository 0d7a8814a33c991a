use std::path::Path;

use super::*;

fn schema(definition: &CustomResourceDefinition) -> Value {
    let mut tree = serde_json::to_value(definition).unwrap();
    tidy(&mut tree);
    tree["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
}

/// Calls `see` for every schema, with its path.
fn walk(path: &str, schema: &Value, see: &mut dyn FnMut(&str, &Value)) {
    see(path, schema);
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        walk(&format!("{path}.{name}"), property, see);
    }
    for inner in ["items", "additionalProperties"] {
        if schema[inner].is_object() {
            walk(&format!("{path}[]"), &schema[inner], see);
        }
    }
}

fn every_schema(mut see: impl FnMut(&str, &Value)) {
    for definition in definitions() {
        walk(
            &definition.spec.names.kind,
            &schema(&definition),
            &mut |path, schema| see(path, schema),
        );
    }
}

#[test]
fn every_field_is_described_in_a_sentence() {
    let mut bare = Vec::new();
    every_schema(|path, schema| {
        let text = schema["description"].as_str().unwrap_or_default();
        if !path.ends_with("[]") && !text.ends_with('.') {
            bare.push(format!("{path}: {text:?}"));
        }
    });
    assert!(bare.is_empty(), "{bare:#?}");
}

#[test]
fn every_list_map_and_text_has_a_limit() {
    let mut endless = Vec::new();
    every_schema(|path, schema| {
        let bounded = match schema["type"].as_str() {
            Some("array") => schema["maxItems"].is_u64(),
            Some("string") => ["maxLength", "enum", "format"]
                .iter()
                .any(|limit| !schema[limit].is_null()),
            Some("integer") => !schema["minimum"].is_null(),
            Some("object") => {
                schema["additionalProperties"].is_null() || schema["maxProperties"].is_u64()
            }
            Some("boolean") => true,
            None => schema["x-kubernetes-int-or-string"] == true && schema["maxLength"].is_u64(),
            Some(_) => false,
        };
        if !bounded {
            endless.push(format!("{path}: {schema}"));
        }
    });
    assert!(endless.is_empty(), "{endless:#?}");
}

#[test]
fn every_rule_says_what_to_write() {
    let mut count = 0;
    every_schema(|path, schema| {
        for rule in schema["x-kubernetes-validations"]
            .as_array()
            .into_iter()
            .flatten()
        {
            count += 1;
            let message = rule["message"].as_str().unwrap_or_default();
            assert!(
                message.contains("write") || message.contains("leave"),
                "{path}: {rule}"
            );
        }
    });
    assert!(count > 40, "only {count} rules");
}

#[test]
fn null_is_no_value_of_a_field() {
    every_schema(|path, schema| {
        let root_status = path.matches('.').count() == 1 && path.ends_with(".status");
        assert!(
            schema["nullable"].is_null() || root_status,
            "{path} may be null, which CEL rules don't expect"
        );
    });
}

#[test]
fn the_files_of_the_chart_are_those_of_the_types() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../chart/crds");
    let files = files().unwrap();
    let names: Vec<_> = files.iter().map(|file| file.name.clone()).collect();
    for entry in std::fs::read_dir(&dir).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(
            names.contains(&name),
            "chart/crds/{name} is of no kind: run `cargo xtask crds`"
        );
    }
    for file in files {
        let there = std::fs::read_to_string(dir.join(&file.name)).unwrap_or_default();
        assert!(
            there == file.text,
            "chart/crds/{} differs: run `cargo xtask crds`",
            file.name
        );
    }
}

#[test]
fn defaults_are_those_of_the_types() {
    let class: crate::class::ClassSpec = serde_json::from_str("{}").unwrap();
    assert_eq!(class, crate::class::ClassSpec::default());
    let schema = schema(&AgentNetworkClass::crd());
    let spec = &schema["properties"]["spec"]["properties"];
    assert_eq!(spec["fakeIPCIDR"]["default"], "169.254.0.0/16");
    assert_eq!(
        spec["proxy"]["default"],
        serde_json::json!({"port": 18080, "dnsPort": 18053, "failMode": "Closed"})
    );
}
