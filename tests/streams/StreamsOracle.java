import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.stream.Collectors;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.TestInputTopic;
import org.apache.kafka.streams.TestOutputTopic;
import org.apache.kafka.streams.TopologyTestDriver;
import org.apache.kafka.streams.kstream.Aggregator;
import org.apache.kafka.streams.kstream.Branched;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Initializer;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Named;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Repartitioned;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.SlidingWindows;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.TableJoined;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.ValueJoiner;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.SessionStore;
import org.apache.kafka.streams.state.ValueAndTimestamp;
import org.apache.kafka.streams.state.WindowStore;
import org.apache.kafka.streams.test.TestRecord;

/**
 * Runs scenarios by Kafka Streams' own test driver, with caches off.
 *
 * <p>Each line of the standard input is a scenario, as tests/streams/scenario.py describes it. For
 * each, a line is written: what every record put out, and what the stores held at the end. The
 * first argument is a folder for the stores.
 */
public final class StreamsOracle {
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final Serde<String> TEXT = Serdes.String();
  private static final Serde<JsonNode> ROW = Serdes.serdeFrom(StreamsOracle::bytes, StreamsOracle::row);

  private final StreamsBuilder builder = new StreamsBuilder();
  private final Map<String, KStream<String, JsonNode>> streams = new LinkedHashMap<>();
  private final Map<String, KTable<String, JsonNode>> tables = new LinkedHashMap<>();
  private final Map<String, KTable<Windowed<String>, JsonNode>> windowed = new LinkedHashMap<>();
  private final Map<String, String> stores = new LinkedHashMap<>();
  private final List<String> inputs = new ArrayList<>();
  private final List<String> outputs = new ArrayList<>();

  public static void main(String[] arguments) throws IOException {
    PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
    System.setOut(System.err);
    BufferedReader in =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    int number = 0;
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      JsonNode scenario = JSON.readTree(line);
      ObjectNode answer;
      try {
        answer = new StreamsOracle().run(scenario, arguments[0] + "/" + number++);
      } catch (RuntimeException error) {
        answer = JSON.createObjectNode().put("error", error.toString());
      }
      out.println(JSON.writeValueAsString(answer));
      out.flush();
    }
  }

  private ObjectNode run(JsonNode scenario, String folder) {
    for (JsonNode node : scenario.get("nodes")) {
      add(node);
    }
    Properties chosen = new Properties();
    chosen.put(StreamsConfig.APPLICATION_ID_CONFIG, "oracle");
    chosen.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, "none:1");
    chosen.put(StreamsConfig.STATE_DIR_CONFIG, folder);
    chosen.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
    // else results of records without a partner wait for a second of the driver's clock
    chosen.put("__emit.interval.ms.kstreams.outer.join.spurious.results.fix__", 0L);
    ObjectNode answer = JSON.createObjectNode();
    ArrayNode told = answer.putArray("outputs");
    try (TopologyTestDriver driver = new TopologyTestDriver(builder.build(), chosen)) {
      Map<String, TestInputTopic<String, JsonNode>> sources = new LinkedHashMap<>();
      for (String topic : inputs) {
        sources.put(
            topic, driver.createInputTopic(topic, new StringSerializer(), ROW.serializer()));
      }
      Map<String, TestOutputTopic<String, JsonNode>> sinks = new LinkedHashMap<>();
      for (String topic : outputs) {
        sinks.put(
            topic, driver.createOutputTopic(topic, new StringDeserializer(), ROW.deserializer()));
      }
      int index = 0;
      for (JsonNode record : scenario.get("records")) {
        JsonNode value = record.get(2).isNull() ? null : record.get(2);
        sources
            .get(record.get(0).asText())
            .pipeInput(record.get(1).textValue(), value, record.get(3).asLong());
        for (Map.Entry<String, TestOutputTopic<String, JsonNode>> sink : sinks.entrySet()) {
          for (TestRecord<String, JsonNode> result : sink.getValue().readRecordsToList()) {
            told.addArray()
                .add(index)
                .add(sink.getKey())
                .add(result.key())
                .add(result.value())
                .add(result.timestamp());
          }
        }
        index++;
      }
      ObjectNode held = answer.putObject("stores");
      stores.forEach((name, kind) -> read(driver, name, kind, held.putObject(name)));
    }
    return answer;
  }

  private static void read(TopologyTestDriver driver, String name, String kind, ObjectNode held) {
    switch (kind) {
      case "rows" -> {
        KeyValueStore<String, ValueAndTimestamp<JsonNode>> store =
            driver.getTimestampedKeyValueStore(name);
        try (KeyValueIterator<String, ValueAndTimestamp<JsonNode>> rows = store.all()) {
          rows.forEachRemaining(
              each ->
                  held.putArray(each.key).add(each.value.value()).add(each.value.timestamp()));
        }
      }
      case "windows" -> {
        WindowStore<String, ValueAndTimestamp<JsonNode>> store =
            driver.getTimestampedWindowStore(name);
        try (KeyValueIterator<Windowed<String>, ValueAndTimestamp<JsonNode>> rows = store.all()) {
          rows.forEachRemaining(
              each ->
                  held.putArray(key(each.key)).add(each.value.value()).add(each.value.timestamp()));
        }
      }
      default -> {
        SessionStore<String, JsonNode> store = driver.getSessionStore(name);
        try (KeyValueIterator<Windowed<String>, JsonNode> rows = store.fetch(null, null)) {
          rows.forEachRemaining(
              each -> held.putArray(key(each.key)).add(each.value).add(each.key.window().end()));
        }
      }
    }
  }

  private void add(JsonNode node) {
    String name = text(node, "name");
    switch (text(node, "op")) {
      case "stream" -> {
        inputs.add(text(node, "topic"));
        streams.put(name, builder.stream(text(node, "topic"), Consumed.with(TEXT, ROW)));
      }
      case "table" -> {
        inputs.add(text(node, "topic"));
        stores.put(name, "rows");
        tables.put(
            name, builder.table(text(node, "topic"), Consumed.with(TEXT, ROW), rows(name)));
      }
      case "filter" ->
          streams.put(name, of(node).filter((key, row) -> holds(node.get("where"), row)));
      case "select" -> streams.put(name, of(node).mapValues(row -> selected(node, row)));
      case "explode" -> streams.put(name, of(node).flatMapValues(StreamsOracle::words));
      case "key_by" ->
          streams.put(
              name,
              of(node)
                  .filter((key, row) -> row != null)
                  .selectKey((key, row) -> text(row, "s"))
                  .repartition(Repartitioned.<String, JsonNode>as(name).withKeySerde(TEXT).withValueSerde(ROW)));
      case "aggregate" -> aggregate(name, node);
      case "group_table" -> {
        boolean counts = text(node, "what").equals("count");
        stores.put(name, "rows");
        tables.put(
            name,
            tables
                .get(text(node, "of"))
                .groupBy((key, row) -> KeyValue.pair(text(row, "s"), row), Grouped.with(TEXT, ROW))
                .aggregate(
                    () -> made(0, ""),
                    (key, row, held) -> made(number(held) + (counts ? 1 : number(row)), key),
                    (key, row, held) -> made(number(held) - (counts ? 1 : number(row)), key),
                    rows(name)));
      }
      case "each" -> each(name, node);
      case "final" ->
          streams.put(
              name,
              labelled(
                  windowed
                      .get(text(node, "of"))
                      .suppress(
                          Suppressed.untilWindowCloses(
                              Suppressed.BufferConfig.unbounded()))));
      case "join" -> join(name, node);
      case "stream_table" -> {
        KStream<String, JsonNode> left = streams.get(text(node, "left"));
        KTable<String, JsonNode> right = tables.get(text(node, "right"));
        Joined<String, JsonNode, JsonNode> with = Joined.with(TEXT, ROW, ROW);
        streams.put(
            name,
            text(node, "how").equals("inner")
                ? left.join(right, PAIR, with)
                : left.leftJoin(right, PAIR, with));
      }
      case "table_table" -> {
        KTable<String, JsonNode> left = tables.get(text(node, "left"));
        KTable<String, JsonNode> right = tables.get(text(node, "right"));
        tables.put(
            name,
            switch (text(node, "how")) {
              case "inner" -> left.join(right, PAIR);
              case "left" -> left.leftJoin(right, PAIR);
              default -> left.outerJoin(right, PAIR);
            });
      }
      case "foreign_key" -> {
        KTable<String, JsonNode> left = tables.get(text(node, "left"));
        KTable<String, JsonNode> right = tables.get(text(node, "right"));
        TableJoined<String, String> as = TableJoined.as(name);
        stores.put(name, "rows");
        tables.put(
            name,
            text(node, "how").equals("inner")
                ? left.join(right, row -> text(row, "s"), PAIR, as, rows(name))
                : left.leftJoin(right, row -> text(row, "s"), PAIR, as, rows(name)));
      }
      case "merge" ->
          streams.put(
              name, streams.get(text(node, "left")).merge(streams.get(text(node, "right"))));
      case "branch" -> {
        Map<String, KStream<String, JsonNode>> parts =
            // else the last branch has the nulls, of which no condition is true
            of(node)
                .filter((key, row) -> row != null)
                .split(Named.as(name))
                .branch((key, row) -> holds(node.get("where"), row), Branched.as(".yes"))
                .defaultBranch(Branched.as(".no"));
        streams.putAll(parts);
      }
      case "to" -> {
        outputs.add(text(node, "topic"));
        of(node).to(text(node, "topic"), Produced.with(TEXT, ROW));
      }
      default -> throw new IllegalArgumentException(node.toString());
    }
  }

  private KStream<String, JsonNode> of(JsonNode node) {
    return streams.get(text(node, "of"));
  }

  private void each(String name, JsonNode node) {
    String of = text(node, "of");
    streams.put(
        name, tables.containsKey(of) ? tables.get(of).toStream() : labelled(windowed.get(of)));
  }

  private static KStream<String, JsonNode> labelled(KTable<Windowed<String>, JsonNode> table) {
    return table.toStream().map((window, row) -> KeyValue.pair(key(window), row));
  }

  private void aggregate(String name, JsonNode node) {
    // aggregates with and without windows differ in whether they take a null
    KGroupedStream<String, JsonNode> grouped =
        of(node).filter((key, row) -> row != null).groupByKey(Grouped.with(TEXT, ROW));
    String what = text(node, "what");
    Initializer<JsonNode> start = () -> made(0, "");
    Aggregator<String, JsonNode, JsonNode> fold = (key, row, held) -> fold(what, key, row, held);
    JsonNode window = node.get("window");
    if (window == null || window.isNull()) {
      stores.put(name, "rows");
      tables.put(name, grouped.aggregate(start, fold, rows(name)));
      return;
    }
    Duration grace = millis(window, "grace");
    String kind = text(window, "kind");
    if (kind.equals("session")) {
      stores.put(name, "sessions");
      Materialized<String, JsonNode, SessionStore<Bytes, byte[]>> as = Materialized.as(name);
      windowed.put(
          name,
          grouped
              .windowedBy(SessionWindows.ofInactivityGapAndGrace(millis(window, "gap"), grace))
              .aggregate(
                  start,
                  fold,
                  (key, left, right) -> merged(what, key, left, right),
                  as.withKeySerde(TEXT).withValueSerde(ROW).withCachingDisabled()));
      return;
    }
    stores.put(name, "windows");
    Duration size = millis(window, "size");
    Materialized<String, JsonNode, WindowStore<Bytes, byte[]>> as = Materialized.as(name);
    as.withKeySerde(TEXT).withValueSerde(ROW).withCachingDisabled();
    windowed.put(
        name,
        switch (kind) {
          case "tumbling" ->
              grouped
                  .windowedBy(TimeWindows.ofSizeAndGrace(size, grace))
                  .aggregate(start, fold, as);
          case "hopping" ->
              grouped
                  .windowedBy(
                      TimeWindows.ofSizeAndGrace(size, grace).advanceBy(millis(window, "every")))
                  .aggregate(start, fold, as);
          default ->
              grouped
                  .windowedBy(SlidingWindows.ofTimeDifferenceAndGrace(size, grace))
                  .aggregate(start, fold, as);
        });
  }

  private void join(String name, JsonNode node) {
    KStream<String, JsonNode> left = streams.get(text(node, "left"));
    KStream<String, JsonNode> right = streams.get(text(node, "right"));
    // the difference first: the constructor with a grace wants one for both directions
    JoinWindows window =
        JoinWindows.ofTimeDifferenceAndGrace(millis(node, "before"), millis(node, "grace"))
            .after(millis(node, "after"));
    StreamJoined<String, JsonNode, JsonNode> with = StreamJoined.with(TEXT, ROW, ROW);
    streams.put(
        name,
        switch (text(node, "how")) {
          case "inner" -> left.join(right, PAIR, window, with);
          case "left" -> left.leftJoin(right, PAIR, window, with);
          default -> left.outerJoin(right, PAIR, window, with);
        });
  }

  private static final ValueJoiner<JsonNode, JsonNode, JsonNode> PAIR =
      (left, right) ->
          made(
              (left == null ? 0 : left.get("n").asLong())
                  + (right == null ? 0 : right.get("n").asLong()),
              (left == null ? "-" : text(left, "s")) + "+" + (right == null ? "-" : text(right, "s")));

  private static boolean holds(JsonNode where, JsonNode row) {
    if (row == null) {
      return false;
    }
    JsonNode field = row.get(where.get(0).asText());
    JsonNode value = where.get(2);
    return switch (where.get(1).asText()) {
      case "<" -> field.asLong() < value.asLong();
      case ">=" -> field.asLong() >= value.asLong();
      default -> field.equals(value);
    };
  }

  private static JsonNode selected(JsonNode node, JsonNode row) {
    if (row == null) {
      return null;
    }
    return made(
        row.get("n").asLong() * node.get("times").asLong() + node.get("plus").asLong(),
        text(row, "s") + text(node, "suffix"));
  }

  private static List<JsonNode> words(JsonNode row) {
    List<JsonNode> found = new ArrayList<>();
    if (row != null) {
      for (String word : text(row, "s").split(" ")) {
        found.add(made(row.get("n").asLong(), word));
      }
    }
    return found;
  }

  private static JsonNode fold(String what, String key, JsonNode row, JsonNode held) {
    if (what.equals("top")) {
      return best(List.of(row.get("n").asLong()), numbers(held));
    }
    long added = what.equals("count") ? 1 : row.get("n").asLong();
    return made(held.get("n").asLong() + added, key);
  }

  private static JsonNode merged(String what, String key, JsonNode left, JsonNode right) {
    if (what.equals("top")) {
      return best(numbers(left), numbers(right));
    }
    return made(left.get("n").asLong() + right.get("n").asLong(), key);
  }

  private static List<Long> numbers(JsonNode held) {
    String text = text(held, "s");
    return text.isEmpty()
        ? List.of()
        : Arrays.stream(text.split(",")).map(Long::valueOf).toList();
  }

  private static JsonNode best(List<Long> some, List<Long> others) {
    List<Long> all = new ArrayList<>(some);
    all.addAll(others);
    all.sort(Comparator.reverseOrder());
    List<Long> found = all.subList(0, Math.min(3, all.size()));
    if (found.isEmpty()) {
      return made(0, "");
    }
    return made(
        found.get(0), found.stream().map(String::valueOf).collect(Collectors.joining(",")));
  }

  private static long number(JsonNode row) {
    return row.get("n").asLong();
  }

  private static JsonNode made(long number, String text) {
    return JSON.createObjectNode().put("n", number).put("s", text);
  }

  private static Materialized<String, JsonNode, KeyValueStore<Bytes, byte[]>> rows(String name) {
    Materialized<String, JsonNode, KeyValueStore<Bytes, byte[]>> as = Materialized.as(name);
    return as.withKeySerde(TEXT).withValueSerde(ROW).withCachingDisabled();
  }

  private static String key(Windowed<String> window) {
    return window.key() + "@" + window.window().start() + "-" + window.window().end();
  }

  private static Duration millis(JsonNode node, String field) {
    return Duration.ofMillis(node.get(field).asLong());
  }

  private static String text(JsonNode node, String field) {
    return node.get(field).asText();
  }

  private static byte[] bytes(String topic, JsonNode row) {
    try {
      return row == null ? null : JSON.writeValueAsBytes(row);
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  private static JsonNode row(String topic, byte[] bytes) {
    try {
      return bytes == null ? null : JSON.readTree(bytes);
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }
}
