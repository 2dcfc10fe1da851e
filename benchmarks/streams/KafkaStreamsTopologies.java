import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.LongAdder;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Repartitioned;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.processor.api.FixedKeyProcessor;
import org.apache.kafka.streams.processor.api.FixedKeyProcessorContext;
import org.apache.kafka.streams.processor.api.FixedKeyRecord;
import org.apache.kafka.streams.processor.api.RecordMetadata;

/**
 * Kafka Streams as a side of a comparison: counts records by key, window or word, exactly once.
 *
 * <p>One JSON object a line, as benchmarks/peer_sides/wire.py says; the process serves round after
 * round, so that its code is compiled once.
 */
public final class KafkaStreamsTopologies {
  private static final long PATIENCE_S = 240;
  private static final ObjectMapper JSON = new ObjectMapper();

  /** What was counted so far: how many records, and up to which offsets. */
  private static final class Seen {
    final LongAdder records = new LongAdder();
    final Map<TopicPartition, AtomicLong> ends = new ConcurrentHashMap<>();
    // when a thread has its first record: it may be at work before all of them are
    final AtomicLong first = new AtomicLong();

    void begin() {
      if (first.get() == 0) {
        first.compareAndSet(0, System.nanoTime());
      }
    }
  }

  /** Notes each record before it is counted; a task has one partition of the topic. */
  private static final class Noting implements FixedKeyProcessor<String, String, String> {
    private final Seen seen;
    private FixedKeyProcessorContext<String, String> context;
    private AtomicLong end;

    Noting(Seen seen) {
      this.seen = seen;
    }

    @Override
    public void init(FixedKeyProcessorContext<String, String> context) {
      this.context = context;
    }

    @Override
    public void process(FixedKeyRecord<String, String> record) {
      RecordMetadata at = context.recordMetadata().get();
      if (end == null) {
        TopicPartition partition = new TopicPartition(at.topic(), at.partition());
        end = seen.ends.computeIfAbsent(partition, key -> new AtomicLong());
      }
      end.lazySet(at.offset() + 1);
      seen.records.increment();
      context.forward(record);
    }
  }

  public static void main(String[] arguments) throws Exception {
    PrintStream out = System.out;
    System.setOut(System.err);
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      serve(JSON.readTree(line), in, out);
    }
  }

  private static void serve(JsonNode request, BufferedReader in, PrintStream out)
      throws Exception {
    String servers = request.get("servers").asText();
    String group = request.get("group").asText();
    JsonNode settings = request.get("settings");
    long expected = settings.get("counted").asLong();
    Properties chosen = new Properties();
    chosen.put(StreamsConfig.APPLICATION_ID_CONFIG, group);
    chosen.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, servers);
    chosen.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
    chosen.put(StreamsConfig.STATE_DIR_CONFIG, settings.get("directory").asText());
    chosen.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
    chosen.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
    chosen.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
    for (Map.Entry<String, JsonNode> each : settings.get("properties").properties()) {
      chosen.put(each.getKey(), each.getValue().asText());
    }
    Seen seen = new Seen();
    StreamsBuilder builder = new StreamsBuilder();
    KStream<String, String> input =
        builder.stream(request.get("topic").asText(), Consumed.with(Serdes.String(), Serdes.String()));
    input = input.peek((key, value) -> seen.begin());
    String kind = settings.get("kind").asText();
    KStream<String, String> made =
        kind.equals("join")
            ? pairs(
                input,
                builder.stream(
                    settings.get("other").asText(),
                    Consumed.with(Serdes.String(), Serdes.String())),
                seen)
            : counts(kind, input, seen);
    made.to(settings.get("output").asText(), Produced.with(Serdes.String(), Serdes.String()));
    long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_S);
    try (KafkaStreams streams = new KafkaStreams(builder.build(), chosen);
        Admin admin = Admin.create(Map.of("bootstrap.servers", (Object) servers))) {
      streams.start();
      while (streams.state() != KafkaStreams.State.RUNNING && seen.first.get() == 0) {
        require(streams, deadline, "not running");
        Thread.sleep(1);
      }
      long assigned = System.nanoTime();
      out.println("{\"event\": \"assigned\"}");
      out.flush();
      while (seen.records.sum() < expected || !committed(admin, group, seen)) {
        require(streams, deadline, seen.records.sum() + " of " + expected + " records came");
        Thread.sleep(seen.records.sum() < expected ? 5 : 2);
      }
      long last = System.nanoTime();
      out.printf(
          "{\"event\": \"complete\", \"records\": %d, \"from_assignment\": %.4f,"
              + " \"from_first\": %.4f}%n",
          seen.records.sum(), (last - assigned) / 1e9, (last - seen.first.get()) / 1e9);
      out.flush();
      in.readLine();
      if (!streams.close(Duration.ofSeconds(60))) {
        throw new IllegalStateException("not closed in 60 s");
      }
      streams.cleanUp();
    }
    out.println("{\"event\": \"stopped\"}");
    out.flush();
  }

  /** Returns the counts, by key, as JSON. */
  private static KStream<String, String> counts(
      String kind, KStream<String, String> input, Seen seen) {
    KStream<String, String> records = input;
    if (kind.equals("wordcount")) {
      records =
          input
              .flatMapValues(KafkaStreamsTopologies::words)
              .selectKey((key, word) -> word)
              .repartition(
                  Repartitioned.with(Serdes.String(), Serdes.String()).withName("words"));
    }
    KGroupedStream<String, String> groups =
        records.processValues(() -> new Noting(seen)).groupByKey();
    Duration minute = Duration.ofMinutes(1);
    Duration grace = Duration.ofSeconds(30);
    return switch (kind) {
      case "count", "wordcount" ->
          groups.count().toStream().mapValues(number -> "{\"n\":" + number + "}");
      case "tumbling" ->
          windowed(groups.windowedBy(TimeWindows.ofSizeAndGrace(minute, grace)).count());
      case "hopping" ->
          windowed(
              groups
                  .windowedBy(
                      TimeWindows.ofSizeAndGrace(minute.multipliedBy(5), grace).advanceBy(minute))
                  .count());
      case "session" ->
          windowed(
              groups.windowedBy(SessionWindows.ofInactivityGapAndGrace(grace, grace)).count());
      default -> throw new IllegalArgumentException(kind);
    };
  }

  /** Returns the pairs of two streams within ten seconds. */
  private static KStream<String, String> pairs(
      KStream<String, String> left, KStream<String, String> right, Seen seen) {
    return left.processValues(() -> new Noting(seen))
        .join(
            right.peek((key, value) -> seen.begin()).processValues(() -> new Noting(seen)),
            (one, other) -> "{\"n\":1}",
            JoinWindows.ofTimeDifferenceAndGrace(Duration.ofSeconds(10), Duration.ofSeconds(30)),
            StreamJoined.with(Serdes.String(), Serdes.String(), Serdes.String()));
  }

  private static List<String> words(String value) {
    try {
      return Arrays.asList(JSON.readTree(value).get("text").asText().split(" "));
    } catch (JsonProcessingException error) {
      throw new IllegalArgumentException(error);
    }
  }

  private static KStream<String, String> windowed(KTable<Windowed<String>, Long> counts) {
    return counts
        .toStream()
        .map(
            (at, number) ->
                KeyValue.pair(
                    at.key(),
                    number == null
                        ? null
                        : "{\"begin\":" + at.window().start() + ",\"n\":" + number + "}"));
  }

  private static void require(KafkaStreams streams, long deadline, String what) {
    if (System.nanoTime() > deadline || streams.state() == KafkaStreams.State.ERROR) {
      throw new IllegalStateException(what);
    }
  }

  /** Returns whether all that was counted is committed. */
  private static boolean committed(Admin admin, String group, Seen seen) throws Exception {
    Map<TopicPartition, OffsetAndMetadata> offsets =
        admin
            .listConsumerGroupOffsets(group)
            .partitionsToOffsetAndMetadata()
            .get(30, TimeUnit.SECONDS);
    return seen.ends.entrySet().stream()
        .allMatch(
            each -> {
              OffsetAndMetadata offset = offsets.get(each.getKey());
              return offset != null && offset.offset() >= each.getValue().get();
            });
  }
}
