import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import java.util.Properties;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * Debezium's PostgreSQL connector, embedded: follows until so many events have come, printing each.
 * Arguments: host, port, user, password, database, publication, slot, snapshot mode, autocreate
 * mode, events, file of offsets, tables.
 */
final class Follow {
    private Follow() {}

    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        String[] names = {
            "database.hostname", "database.port", "database.user", "database.password",
            "database.dbname", "publication.name", "slot.name", "snapshot.mode",
            "publication.autocreate.mode"
        };
        for (int i = 0; i < names.length; i++) {
            properties.setProperty(names[i], arguments[i]);
        }
        properties.setProperty("name", "follow");
        properties.setProperty("topic.prefix", "x");
        properties.setProperty("plugin.name", "pgoutput");
        properties.setProperty("connector.class", "io.debezium.connector.postgresql.PostgresConnector");
        properties.setProperty("offset.storage", "org.apache.kafka.connect.storage.FileOffsetBackingStore");
        properties.setProperty("offset.storage.file.filename", arguments[10]);
        properties.setProperty("offset.flush.interval.ms", "200");
        properties.setProperty("table.include.list", arguments[11]);
        properties.setProperty("slot.drop.on.stop", "false");
        properties.setProperty("tombstones.on.delete", "false");
        int wanted = Integer.parseInt(arguments[9]);
        AtomicInteger seen = new AtomicInteger();
        ExecutorService executor = Executors.newSingleThreadExecutor();
        DebeziumEngine<ChangeEvent<String, String>> engine = DebeziumEngine.create(Json.class)
            .using(properties)
            .using((success, message, error) -> {
                if (!success) {
                    System.out.println("FAILED " + message + " " + error);
                    if (error != null) {
                        error.printStackTrace(System.out);
                    }
                }
            })
            .notifying(event -> {
                System.out.println("EVENT " + event.destination() + " " + event.value());
                seen.incrementAndGet();
            })
            .build();
        executor.execute(engine);
        executor.shutdown();
        for (int i = 0; i < 600 && seen.get() < wanted && !executor.isTerminated(); i++) {
            Thread.sleep(100);
        }
        System.out.println("SEEN " + seen.get());
        engine.close();
        executor.awaitTermination(30, TimeUnit.SECONDS);
        System.exit(seen.get() >= wanted ? 0 : 1);
    }
}
