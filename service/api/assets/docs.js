// Draws /openapi.json. Text goes in as text nodes only, so nothing a schema holds can become markup.
"use strict";

function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function resolve(spec, schema, depth) {
  if (schema === null || typeof schema !== "object") return schema;
  if (Array.isArray(schema)) return schema.map((item) => resolve(spec, item, depth));
  if (schema.$ref) {
    const name = schema.$ref.split("/").pop();
    return depth > 4 ? name : resolve(spec, spec.components.schemas[name], depth + 1);
  }
  return Object.fromEntries(Object.entries(schema).map(([key, value]) => [key, resolve(spec, value, depth)]));
}

function contents(spec, title, content) {
  return Object.entries(content || {}).map(([type, media]) =>
    element("details", {}, element("summary", {}, `${title}: ${type}`),
      element("pre", {}, JSON.stringify(resolve(spec, media.schema || {}, 0), null, 2))));
}

function parameters(operation) {
  const rows = (operation.parameters || []).map((parameter) => element("tr", {},
    element("td", {}, element("code", {}, parameter.name)), element("td", {}, parameter.in),
    element("td", {}, JSON.stringify(parameter.schema)), element("td", {}, parameter.description || "")));
  if (rows.length === 0) return [];
  const head = element("tr", {}, ...["name", "in", "schema", ""].map((text) => element("th", {}, text)));
  return [element("table", {}, head, ...rows)];
}

function tryOut(path, operation) {
  const inputs = (operation.parameters || []).map((parameter) =>
    [parameter, element("input", { placeholder: parameter.name, "aria-label": parameter.name })]);
  const output = element("pre", { "aria-live": "polite" });
  const button = element("button", { type: "button" }, "Try");
  button.addEventListener("click", async () => {
    let address = path;
    const query = new URLSearchParams();
    for (const [parameter, input] of inputs) {
      if (parameter.in === "path") address = address.replace(`{${parameter.name}}`, encodeURIComponent(input.value));
      else if (parameter.in === "query" && input.value) query.set(parameter.name, input.value);
    }
    if (query.size) address += `?${query}`;
    const key = document.getElementById("key").value;
    const headers = { Accept: "application/json, */*;q=0.5" };
    if (key) headers.Authorization = `Bearer ${key}`;
    output.textContent = "…";
    try {
      const answer = await fetch(address, { headers });
      output.textContent = `${answer.status} ${answer.statusText}\n\n${await answer.text()}`;
    } catch (error) {
      output.textContent = String(error);
    }
  });
  return [...inputs.map(([, input]) => input), button, output];
}

function route(spec, path, method, operation) {
  const answers = Object.entries(operation.responses).flatMap(([status, response]) =>
    [element("p", {}, element("code", {}, status), ` ${response.description}`),
      ...contents(spec, `body of ${status}`, status < "400" ? response.content : {})]);
  return element("details", {},
    element("summary", {}, element("span", { class: "method" }, method.toUpperCase()), " ",
      element("code", {}, path), ` ${operation.summary || ""}`),
    element("p", {}, operation.description || ""), ...parameters(operation),
    ...contents(spec, "request", operation.requestBody && operation.requestBody.content),
    ...answers, ...(method === "get" ? tryOut(path, operation) : []));
}

async function draw() {
  const spec = await (await fetch("/openapi.json")).json();
  document.getElementById("title").textContent = `${spec.info.title} API ${spec.info.version}`;
  document.getElementById("about").textContent = spec.info.description;
  document.getElementById("routes").replaceChildren(...Object.entries(spec.paths).flatMap(([path, operations]) =>
    Object.entries(operations).map(([method, operation]) => route(spec, path, method, operation))));
}

draw();
