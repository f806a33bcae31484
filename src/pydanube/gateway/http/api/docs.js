// Renders /openapi.json. Everything from the document is put into the page as text, never as HTML.
"use strict";

const METHODS = ["get", "put", "post", "patch", "delete"];
let api;

function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
  for (const child of children.flat()) if (child !== null && child !== undefined) element.append(child);
  return element;
}

function resolve(value) {
  while (value && value.$ref) {
    value = value.$ref.slice(2).split("/").reduce((found, name) => found[name], api);
  }
  return value || {};
}

function typeOf(schema) {
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.enum) return schema.enum.map((one) => JSON.stringify(one)).join(" | ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  const choices = schema.anyOf || schema.oneOf;
  if (choices) return choices.map(typeOf).join(" | ");
  if (schema.type === "array") return "array of " + typeOf(schema.items || {});
  if (schema.type === "object" && schema.additionalProperties && schema.additionalProperties !== true) {
    return "object of " + typeOf(schema.additionalProperties);
  }
  return schema.type || "any";
}

function limitsOf(schema) {
  const one = (schema.anyOf || []).find((choice) => choice.type !== "null") || schema;
  const found = [];
  if (one.minimum !== undefined) found.push("at least " + one.minimum);
  if (one.maximum !== undefined) found.push("at most " + one.maximum);
  if (one.exclusiveMaximum !== undefined) found.push("below " + one.exclusiveMaximum);
  if (one.maxLength !== undefined) found.push("at most " + one.maxLength + " characters");
  if (one.maxItems !== undefined) found.push("at most " + one.maxItems + " items");
  if (schema.default !== undefined) found.push("default " + JSON.stringify(schema.default));
  return found.join(", ");
}

function prose(text) {
  const parts = (text || "").split("`");
  return parts.map((part, index) => (index % 2 ? make("code", {}, part) : part));
}

function row(name, schema, description, required) {
  const limits = limitsOf(schema);
  return make("tr", {},
    make("td", {}, make("code", {}, name), required ? make("div", { class: "quiet" }, "required") : null),
    make("td", {}, make("code", {}, typeOf(schema)), limits ? make("div", { class: "quiet" }, limits) : null),
    make("td", {}, prose(description)));
}

function fieldsOf(schema, seen) {
  const name = schema.$ref ? schema.$ref.split("/").pop() : "";
  const object = resolve(schema);
  if (!object.properties || seen.has(name)) return [];
  seen.add(name);
  const required = new Set(object.required || []);
  const rows = Object.entries(object.properties)
    .map(([field, one]) => row(field, one, one.description, required.has(field)));
  const title = make("h4", {}, name || "Fields", " ");
  const found = [title, object.description ? make("p", { class: "quiet" }, prose(object.description)) : null,
    make("table", {}, rows)];
  return [...found, ...Object.values(object.properties).flatMap((one) => nested(one).flatMap((inner) => fieldsOf(inner, seen)))];
}

function nested(schema) {
  if (schema.$ref) return [schema];
  return [schema.items, schema.additionalProperties, ...(schema.anyOf || []), ...(schema.oneOf || [])]
    .filter((one) => one && typeof one === "object").flatMap(nested);
}

function quote(text) { return "'" + text.replaceAll("'", "'\\''") + "'"; }

function curlOf(method, path, operation) {
  const parameters = (operation.parameters || []).map(resolve);
  const filled = path.replace(/\{(\w+)\}/g, (_, name) => {
    const found = parameters.find((one) => one.name === name);
    return encodeURIComponent(found && found.example !== undefined ? found.example : name);
  });
  const url = location.origin + filled;
  const content = resolve(operation.requestBody).content || {};
  const example = content["application/json"] && content["application/json"].example;
  const words = ["curl"];
  if (method !== "get") words.push("-X", method.toUpperCase());
  words.push(/[^\w:/.%-]/.test(url) ? quote(url) : url);
  if (example !== undefined) words.push("\\\n  -H 'content-type: application/json' -d " + quote(JSON.stringify(example)));
  return words.join(" ");
}

function block(text) {
  const button = make("button", { class: "copy", type: "button" }, "copy");
  button.addEventListener("click", () => navigator.clipboard && navigator.clipboard.writeText(text));
  return make("div", {}, button, make("pre", {}, text));
}

function describe(method, path, operation) {
  const body = make("div", {});
  if (operation.description) body.append(make("p", {}, prose(operation.description)));
  const parameters = (operation.parameters || []).map(resolve);
  if (parameters.length) {
    body.append(make("h4", {}, "Parameters"), make("table", {},
      parameters.map((one) => row(one.name + " (" + one.in + ")", resolve(one.schema), one.description, one.required))));
  }
  const content = resolve(operation.requestBody).content || {};
  for (const [media, one] of Object.entries(content)) {
    body.append(make("h4", {}, "Body: ", make("code", {}, media)));
    body.append(...fieldsOf(one.schema || {}, new Set()).filter((part) => part));
  }
  body.append(make("h4", {}, "Example"), block(curlOf(method, path, operation)), make("h4", {}, "Answers"));
  const answers = make("table", {});
  for (const [status, reference] of Object.entries(operation.responses)) {
    answers.append(make("tr", {}, make("td", {}, make("code", {}, status)), make("td", {}, prose(resolve(reference).description))));
  }
  body.append(answers);
  for (const [status, reference] of Object.entries(operation.responses)) {
    const json = status < "300" && (resolve(reference).content || {})["application/json"];
    if (!json) continue;
    if (json.example !== undefined) body.append(block(JSON.stringify(json.example, null, 2)));
    body.append(...fieldsOf(json.schema || {}, new Set()).filter((part) => part));
  }
  return body;
}

function entry(method, path, operation) {
  const details = make("details", { id: operation.operationId },
    make("summary", {}, make("span", { class: "method " + method }, method.toUpperCase()), make("code", {}, path),
      make("span", { class: "quiet" }, operation.summary)));
  details.addEventListener("toggle", () => {
    if (details.open && details.childElementCount === 1) details.append(describe(method, path, operation));
  });
  const words = [method, path, operation.operationId, operation.summary, operation.description,
    ...(operation.parameters || []).map((one) => resolve(one).name), JSON.stringify(operation.requestBody || "")];
  return { details, link: make("a", { href: "#" + operation.operationId }, operation.summary), tag: operation.tags[0],
    text: words.join(" ").toLowerCase() };
}

function show(entries, tags) {
  const main = document.getElementById("main"), nav = document.getElementById("nav");
  const sections = tags.map((tag) => {
    const mine = entries.filter((one) => one.tag === tag.name);
    const section = make("section", {}, make("h2", {}, tag.name), make("p", { class: "quiet" }, prose(tag.description)),
      mine.map((one) => one.details));
    const links = make("div", {}, make("strong", {}, tag.name), mine.map((one) => one.link));
    return { section, links, mine };
  });
  main.replaceChildren(...api.info.description.split("\n\n").map((one) => make("p", {}, prose(one))), ...sections.map((one) => one.section));
  nav.replaceChildren(...sections.map((one) => one.links));
  return sections;
}

function search(sections, total) {
  const words = document.getElementById("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const { section, links, mine } of sections) {
    let any = false;
    for (const one of mine) {
      const fits = words.every((word) => one.text.includes(word));
      one.details.hidden = one.link.hidden = !fits;
      one.details.style.display = one.link.style.display = fits ? "" : "none";
      any = any || fits;
      shown += fits ? 1 : 0;
    }
    section.style.display = links.style.display = any ? "" : "none";
  }
  document.getElementById("count").textContent = shown + " of " + total + " operations";
}

function openFromAddress() {
  const found = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (found && found.tagName === "DETAILS") { found.open = true; found.scrollIntoView(); }
}

async function start() {
  api = await (await fetch("/openapi.json")).json();
  document.getElementById("version").textContent = api.info.version;
  const entries = Object.entries(api.paths).flatMap(([path, operations]) =>
    METHODS.filter((method) => operations[method]).map((method) => entry(method, path, operations[method])));
  const sections = show(entries, api.tags);
  const box = document.getElementById("search");
  box.addEventListener("input", () => search(sections, entries.length));
  search(sections, entries.length);
  addEventListener("hashchange", openFromAddress);
  openFromAddress();
}

start().catch((error) => { document.getElementById("main").textContent = "The document could not be loaded: " + error; });
