// Queries Perfetto's trace processor about a trace file: query.mjs FOLDER TRACE, with an SQL query per line on standard
// input. FOLDER has the processor as WebAssembly (see tests/perfetto/fetch). Prints the rows of each query as a line of
// JSON.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import vm from 'node:vm';

const [folder, trace] = process.argv.slice(2);

// The processor's glue expects to be in a web worker, from which it requests two things: the WebAssembly file, and a port.
globalThis.self = globalThis;
globalThis.WorkerGlobalScope = class {};
globalThis.location = { href: pathToFileURL(folder).href };
globalThis.XMLHttpRequest = class {
  open(_method, url) {
    this.url = url;
  }
  send() {
    this.status = 200;
    this.response = new Uint8Array(readFileSync(join(folder, this.url))).buffer;
  }
};
// Standard output is only for the rows.
console.log = console.warn = () => {};
const glue = join(folder, 'engine_bundle.node.js');
vm.runInThisContext(readFileSync(glue, 'utf8'), { filename: glue });

const { EngineBase } = await import(pathToFileURL(join(folder, 'engine.mjs')).href);
const { port1, port2 } = new MessageChannel();
self.onmessage({ data: port1 });

class Engine extends EngineBase {
  mode = 'WASM';
  id = 'query';
  rpcSendRequestBytes(bytes) {
    port2.postMessage(bytes);
  }
}
const engine = new Engine();
port2.onmessage = (message) => engine.onRpcResponseBytes(message.data);

await engine.parse(new Uint8Array(readFileSync(trace)));
await engine.notifyEof();
for (const query of readFileSync(0, 'utf8').split('\n').filter((line) => line.trim())) {
  const result = await engine.query(query);
  if (result.error()) {
    throw new Error(`${query}: ${result.error()}`);
  }
  const rows = [];
  for (const row = result.iter({}); row.valid(); row.next()) {
    rows.push(Object.fromEntries(result.columns().map((name) => {
      const value = row.get(name);
      return [name, typeof value === 'bigint' ? Number(value) : value];
    })));
  }
  process.stdout.write(`${JSON.stringify(rows)}\n`);
}
process.exit(0);
