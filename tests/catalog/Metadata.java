import java.sql.Connection;
import java.sql.DatabaseMetaData;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.ResultSetMetaData;

/** Asks a server what JDBC asks of a catalogue, and prints the answers. Arguments: URL. */
final class Metadata {
    private static final String[] KINDS = {"TABLE", "VIEW", "PARTITIONED TABLE", "MATERIALIZED VIEW"};

    private Metadata() {}

    private static void print(String title, ResultSet rows) throws Exception {
        System.out.println("== " + title);
        ResultSetMetaData shape = rows.getMetaData();
        while (rows.next()) {
            StringBuilder line = new StringBuilder();
            for (int i = 1; i <= shape.getColumnCount(); i++) {
                line.append(shape.getColumnLabel(i)).append('=').append(rows.getString(i)).append('|');
            }
            System.out.println(line);
        }
        rows.close();
    }

    public static void main(String[] arguments) throws Exception {
        try (Connection connection = DriverManager.getConnection(arguments[0])) {
            DatabaseMetaData data = connection.getMetaData();
            System.out.println(data.getDatabaseMajorVersion() + " " + data.getUserName());
            print("schemas", data.getSchemas());
            print("schemas like", data.getSchemas(null, "s%"));
            print("tables", data.getTables(null, null, "%", KINDS));
            print("tables of a schema", data.getTables(null, "s2", "%", new String[] {"TABLE"}));
            for (String schema : new String[] {"public", "s2"}) {
                print("columns", data.getColumns(null, schema, "%", "%"));
            }
            String[][] tables = {{"public", "t"}, {"s2", "Odd Name"}, {"s2", "by_index"}, {"public", "u"}};
            for (String[] table : tables) {
                print("key", data.getPrimaryKeys(null, table[0], table[1]));
                print("indexes", data.getIndexInfo(null, table[0], table[1], false, true));
                print("unique", data.getIndexInfo(null, table[0], table[1], true, true));
                print("imported", data.getImportedKeys(null, table[0], table[1]));
                print("best row", data.getBestRowIdentifier(null, table[0], table[1], 1, true));
            }
            print("catalogs", data.getCatalogs());
            print("table types", data.getTableTypes());
            try (PreparedStatement statement = connection.prepareStatement(
                    "select relname, relkind, oid from pg_class where relname = ? and relnatts > ?")) {
                statement.setString(1, "t");
                statement.setInt(2, 1);
                print("prepared", statement.executeQuery());
            }
            connection.setAutoCommit(false);
            connection.setReadOnly(true);
            print("in a transaction", connection.createStatement().executeQuery("select 1"));
            connection.rollback();
            connection.setTransactionIsolation(Connection.TRANSACTION_REPEATABLE_READ);
            print("isolation", connection.createStatement().executeQuery("show transaction_isolation"));
            connection.commit();
        }
    }
}
