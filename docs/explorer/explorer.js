// Draws the swizzle explorer. The data has every layout and every cost; this script computes
// only the names of bytes and banks. A slot is the number of 16 bytes of shared memory.
(() => {
  "use strict";
  const root = document.getElementById("swizzle-explorer");
  const data = JSON.parse(document.getElementById("swizzle-data").textContent);
  const form = root.querySelector("form");
  const part = (name) => root.querySelector(`.${name}`);
  const [tile, memory] = [part("tile"), part("memory")];
  const CHUNK_BYTES = 16, CHUNKS_PER_LINE = 8, BANKS_PER_CHUNK = 4;
  const start = {
    dtype: "float16", rows: "8", row_bytes: "128", swizzle: "B128", access: "column-chunks", at: "0",
  };
  const state = { ...start, ...Object.fromEntries(new URLSearchParams(location.hash.slice(1))) };
  let pointed = null;

  // --- the choice ---------------------------------------------------------------------------

  const layoutKey = () => `${state.swizzle} ${state.rows} ${state.row_bytes}`;
  const itemsize = () => data.dtypes[state.dtype];

  function cost() {
    const key = `${layoutKey()} ${state.access} `;
    return data.costs[`${key}${itemsize()}`] ?? data.costs[`${key}${CHUNK_BYTES}`];
  }

  function option(select, value, text, disabled = false) {
    const made = new Option(text, value);
    made.disabled = disabled;
    select.add(made);
  }

  function offerModes() {
    for (const name of Object.keys(data.swizzles)) {
      const label = document.createElement("label");
      const input = Object.assign(document.createElement("input"), {
        type: "radio", name: "swizzle", value: name,
      });
      label.append(input, ` ${name === "NONE" ? "none" : `${name.slice(1)}B`}`);
      part("modes").append(label);
    }
  }

  function offerColumns() {
    const span = data.swizzles[state.swizzle].span_bytes;
    form.row_bytes.replaceChildren();
    for (const bytes of data.row_bytes) {
      option(form.row_bytes, bytes, `${bytes / itemsize()} (${bytes} bytes)`, bytes < span);
    }
    if (Number(state.row_bytes) < span) state.row_bytes = String(span);
  }

  // The address of the page may hold anything: an unknown choice becomes the first one.
  function repair() {
    const choices = {
      dtype: Object.keys(data.dtypes), rows: data.rows.map(String),
      row_bytes: data.row_bytes.map(String), swizzle: Object.keys(data.swizzles),
      access: Object.keys(data.patterns),
    };
    for (const [name, known] of Object.entries(choices)) {
      if (!known.includes(state[name])) state[name] = start[name];
    }
  }

  function offer() {
    for (const name of Object.keys(data.dtypes)) option(form.dtype, name, name);
    for (const rows of data.rows) option(form.rows, rows, rows);
    for (const [name, text] of Object.entries(data.patterns)) option(form.access, name, text);
    offerModes();
  }

  // --- the pictures -------------------------------------------------------------------------

  function element(name, text, className = "") {
    return Object.assign(document.createElement(name), { textContent: text, className });
  }

  function cell(row, chunk, slot) {
    const made = element("i", `${row}.${chunk}`);
    made.dataset.slot = slot;
    made.style.background = data.colours[chunk % data.colours.length];
    return made;
  }

  function drawTile(chunks) {
    const perRow = state.row_bytes / CHUNK_BYTES;
    tile.replaceChildren(element("span", "chunk"));
    for (let chunk = 0; chunk < perRow; chunk += 1) tile.append(element("span", chunk, "over"));
    tile.style.gridTemplateColumns = `auto repeat(${perRow}, minmax(2.4rem, auto))`;
    const slots = chunks.map(([row, chunk], slot) => ({ row, chunk, slot }));
    slots.sort((a, b) => a.row - b.row || a.chunk - b.chunk);
    for (const { row, chunk, slot } of slots) {
      if (chunk === 0) tile.append(element("span", `row ${row}`));
      tile.append(cell(row, chunk, slot));
    }
  }

  function drawMemory(chunks) {
    memory.replaceChildren(element("span", "banks"));
    memory.style.gridTemplateColumns = `auto repeat(${CHUNKS_PER_LINE}, minmax(2.4rem, auto))`;
    for (let bank = 0; bank < CHUNKS_PER_LINE * BANKS_PER_CHUNK; bank += BANKS_PER_CHUNK) {
      memory.append(element("span", `${bank}–${bank + BANKS_PER_CHUNK - 1}`, "over"));
    }
    chunks.forEach(([row, chunk], slot) => {
      if (slot % CHUNKS_PER_LINE === 0) memory.append(element("span", `byte ${slot * CHUNK_BYTES}`));
      memory.append(cell(row, chunk, slot));
    });
  }

  function drawBanks(phases) {
    const table = part("banks");
    table.replaceChildren();
    const head = table.insertRow();
    head.append(element("th", "bank"));
    for (let bank = 0; bank < phases[0].words.length; bank += 1) head.append(element("th", bank));
    head.append(element("th", "passes"));
    phases.forEach((phase, number) => {
      const line = table.insertRow();
      line.append(element("th", `phase ${number + 1}`));
      for (const digit of phase.words) {
        const words = parseInt(digit, 36);
        line.append(element("td", words || "·", ["idle", "once"][words] ?? "often"));
      }
      line.append(element("td", phase.passes, phase.passes > 1 ? "often" : "once"));
    });
  }

  function drawAccess(of) {
    const access = of.shown[state.at];
    const read = new Set(access.lanes.map((address) => Math.floor(address / CHUNK_BYTES)));
    for (const one of root.querySelectorAll(".cells i")) {
      one.classList.toggle("read", read.has(Number(one.dataset.slot)));
    }
    drawBanks(access.phases);
    const passes = access.phases.reduce((sum, phase) => sum + phase.passes, 0);
    const times = (count, word, many = `${word}s`) => `${count} ${count === 1 ? word : many}`;
    const needed = access.phases.length;
    part("verdict").replaceChildren(
      element("b", `Access ${Number(state.at) + 1}: ${times(passes, "pass", "passes")} over the banks`),
      ` for ${access.lanes.length} lanes of ${times(of.lane_bytes, "byte")}` +
        (passes > needed ? `, where ${needed} would do without conflicts. ` : ", without conflicts. "),
      `The whole tile: ${times(of.accesses, "access", "accesses")}, ${times(of.passes, "pass", "passes")}, ` +
        `${of.conflicts} of them for conflicts.`,
    );
  }

  // --- the chunk under the pointer ------------------------------------------------------------

  function point(slot) {
    const chunks = data.layouts[layoutKey()];
    pointed = slot === null ? null : Math.max(0, Math.min(slot, chunks.length - 1));
    for (const one of root.querySelectorAll(".cells i")) {
      one.classList.toggle("here", Number(one.dataset.slot) === pointed);
    }
    part("pointed").textContent = pointed === null ? pointing : described(pointed, chunks[pointed]);
  }

  const pointing = "Point at a chunk, or focus a picture and use the arrow keys.";

  function described(slot, [row, chunk]) {
    const each = CHUNK_BYTES / itemsize();
    const bank = (slot % CHUNKS_PER_LINE) * BANKS_PER_CHUNK;
    const columns = each === 1 ? `column ${chunk}` : `columns ${chunk * each} to ${chunk * each + each - 1}`;
    return `Row ${row}, chunk ${chunk} (${columns}): byte ${slot * CHUNK_BYTES} of the tile in ` +
      `shared memory, banks ${bank} to ${bank + BANKS_PER_CHUNK - 1}.`;
  }

  function movePointer(event) {
    const cells = [...event.currentTarget.querySelectorAll("i")];
    const across = event.currentTarget === tile ? state.row_bytes / CHUNK_BYTES : CHUNKS_PER_LINE;
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -across, ArrowDown: across };
    const step = steps[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const now = cells.findIndex((one) => Number(one.dataset.slot) === pointed);
    const next = cells[now < 0 ? 0 : now + step];
    if (next === undefined) return;
    point(Number(next.dataset.slot));
    next.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  // --- all of it ----------------------------------------------------------------------------

  function draw() {
    repair();
    offerColumns();
    for (const name of ["dtype", "rows", "row_bytes", "swizzle", "access"]) form[name].value = state[name];
    const of = cost();
    if (!(state.at in of.shown)) state.at = "0";
    form.at.textContent = `access ${Number(state.at) + 1} of ${of.accesses}`;
    form.back.disabled = state.at === "0";
    form.on.disabled = Number(state.at) + 1 === of.shown.length;
    const chunks = data.layouts[layoutKey()];
    drawTile(chunks);
    drawMemory(chunks);
    drawAccess(of);
    point(null);
    history.replaceState(null, "", `#${new URLSearchParams(state)}`);
  }

  function step(by) {
    state.at = String(Number(state.at) + by);
    draw();
  }

  offer();
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("change", (event) => {
    state[event.target.name] = event.target.value;
    state.at = "0";
    draw();
  });
  form.back.addEventListener("click", () => step(-1));
  form.on.addEventListener("click", () => step(1));
  for (const picture of [tile, memory]) {
    picture.addEventListener("keydown", movePointer);
    picture.addEventListener("mouseover", (event) => {
      if (event.target.dataset.slot) point(Number(event.target.dataset.slot));
    });
    picture.addEventListener("mouseleave", () => point(null));
  }
  draw();
})();
